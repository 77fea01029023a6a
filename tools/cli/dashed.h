/* The library names its options as in C, the command with dashes. */
#ifndef TOOLS_DASHED_H
#define TOOLS_DASHED_H

#include <stddef.h>

/* The library's words as the command says them, into text, which is returned: names of options with dashes, "needs
 * draft and no head_spec" as "needs --draft and no --head_spec". Names are those of mar_params and mar_options. Every
 * word counts that is one; `in_prose`, where "draft" may be no option, only if it has an underscore or begins a clause
 * behind a semicolon. Not for words that name files. */
const char *dashed(const char *words, int in_prose, char *text, size_t size);

#endif
