/* Members of the JSON objects of a tokenizer, checked: what is not read is refused by name. */
#ifndef TEXT_JSON_READ_H
#define TEXT_JSON_READ_H

#include "base/error.h"
#include "base/json.h"

/* Parses text[length] and changes it. `label` is the path. Returns MAR_EFORMAT or MAR_ENOMEM. The caller calls
 * json_free. */
mar_status text_json_parse(char *text, size_t length, const char *label, json *out, mar_err *err);

/* Checks that v is an object, named `what`, without members but these, a list of names separated by spaces, none twice.
 * Returns MAR_EFORMAT otherwise. */
mar_status text_json_only(const json_value *v, const char *what, const char *names, const char *label, mar_err *err);

/* Reads a flag. A missing one is `otherwise`, or refused if that is -1. */
mar_status text_json_flag(const json_value *object, const char *what, const char *name, int otherwise, int *out,
                          const char *label, mar_err *err);

/* Sets *out to a member that is a string. It must be there. */
mar_status text_json_string(const json_value *object, const char *what, const char *name, const json_value **out,
                            const char *label, mar_err *err);

/* Returns a member; NULL if it is missing or null. */
const json_value *text_json_given(const json_value *object, const char *name);

#endif
