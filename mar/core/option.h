/* Internal functions on one option of any struct, besides those of mar_methods.h. */
#ifndef MAR_OPTION_H
#define MAR_OPTION_H

#include "base/error.h"
#include "mar_methods.h"

void *mar_param_field(const mar_param *option, const void *fields);
size_t mar_param_size(const mar_param *option); /* size of the field in bytes */
/* Returns the index of `text` among the option's choices; -1 if it is not one. */
int mar_param_choice(const mar_param *option, const char *text);
/* Sets the field to the default. */
void mar_param_reset(const mar_param *option, void *fields);
/* Returns MAR_EARG, naming the option, if the field's value is out of range. */
mar_status mar_param_check(const mar_param *option, const void *fields, mar_err *err);

#endif
