/* The registry and its public list. */
#include "mar.h"
#include "mar_methods.h"
#include "specdec/verifier.h"
#include "tests/support/support.h"

#include <string.h>

TEST_CASE(methods_are_well_formed)
{
    for (int i = 0; spec_methods()[i]; i++) {
        const spec_method *m = spec_methods()[i];
        assert_ptr_equal(spec_method_find(m->name), m); /* names are unique */
        assert_true(m->tokens == SPEC_DISCRETE || m->tokens == SPEC_CONTINUOUS);
        assert_true(m->topologies & SPEC_CHAIN);
        assert_int_equal(m->discrete_rule != NULL, m->tokens == SPEC_DISCRETE);
        assert_int_equal(m->rule != NULL, m->tokens == SPEC_CONTINUOUS && !m->paths);
        if (m->rule && m->exact) {
            const kern_gaussian_rule rule = m->rule(NULL);
            assert_true(rule.temper == 1 && rule.path_accept == 0 && rule.path_scale == 0);
        }
        assert_non_null(m->source);
        assert_non_null(m->summary);
        assert_non_null(m->guarantee);
        assert_true(!m->neighbours || m->tokens == SPEC_DISCRETE);
        if (m->discrete_rule && m->exact) {
            const kern_discrete_rule rule = m->discrete_rule(NULL, 1, 1);
            assert_true(rule.log_omega == 0 && rule.neighbours == 0);
        }
        for (int j = 0; m->parameters[j].name; j++) {
            const spec_parameter *p = &m->parameters[j];
            assert_true(p->min <= p->value && p->value <= p->max);
            assert_non_null(p->meaning);
        }
    }
    assert_null(spec_method_find("no such method"));
}

TEST_CASE(list_has_every_method)
{
    int verifiers = 0, shortcuts = 0;
    for (int i = 0; i < mar_method_count(); i++) {
        const mar_method_info *info = mar_method_get(i);
        const spec_method *m = spec_method_find(info->name);
        assert_non_null(info->summary);
        assert_non_null(info->guarantee);
        if (strcmp(info->kind, "verifier") == 0) {
            verifiers++;
            assert_string_equal(info->source, m->source);
            assert_int_equal(info->exact, m->exact);
            assert_string_equal(info->tokens, m->tokens == SPEC_DISCRETE ? "discrete" : "continuous");
            assert_non_null(info->option);
            for (int j = 0; m->parameters[j].name; j++) /* info names a parameter by its option, if it has one */
                assert_true(j < info->parameter_count &&
                            mar_method_get_parameter(i, j)->value == m->parameters[j].value);
        } else {
            shortcuts++;
            assert_null(m);
            assert_non_null(info->option);
        }
    }
    int registered = 0;
    while (spec_methods()[registered]) registered++;
    assert_int_equal(verifiers, registered);
    assert_int_equal(shortcuts, 10);
    assert_null(mar_method_get(-1));
    assert_null(mar_method_get(mar_method_count()));
    /* exact by the proofs */
    static const char *const exact[] = {"vanilla", "sjd", "sjd-pac", "scd", "conditional"};
    for (int i = 0; i < 5; i++) assert_true(spec_method_find(exact[i])->exact);
    assert_int_equal(spec_method_find("sjd-pac")->policy, SPEC_CONTINUE);
    assert_int_equal(spec_method_find("paper")->exact, 0);
}
