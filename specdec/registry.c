/* The list of methods. A new method is a file in specdec/methods and one line here. */
#include "specdec/verifier.h"

#include <string.h>

#define METHODS(X)                                                                                                     \
    X(path)                                                                                                            \
    X(conditional)                                                                                                     \
    X(paper)                                                                                                           \
    X(cspd)                                                                                                            \
    X(vanilla)                                                                                                         \
    X(uniform_rsd)                                                                                                     \
    X(cool_sd_exp)                                                                                                     \
    X(cool_sd_linear)                                                                                                  \
    X(lantern)                                                                                                         \
    X(lantern_pp)                                                                                                      \
    X(lantern_gstar)                                                                                                   \
    X(lantern_pp_gstar)                                                                                                \
    X(sjd)                                                                                                             \
    X(sjd_pac)                                                                                                         \
    X(scd)

#define DECLARE(name) extern const spec_method spec_##name;
METHODS(DECLARE)

#define ADDRESS(name) &spec_##name,
static const spec_method *const methods[] = {METHODS(ADDRESS) NULL};

const spec_method *const *spec_methods(void)
{
    return methods;
}

const spec_method *spec_method_find(const char *name)
{
    for (int i = 0; methods[i]; i++)
        if (strcmp(methods[i]->name, name) == 0) return methods[i];
    return NULL;
}
