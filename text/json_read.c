#include "text/json_read.h"

#include <string.h>

mar_status text_json_parse(char *text, size_t length, const char *label, json *out, mar_err *err)
{
    const json_error error = json_read(text, length, 32, out);
    if (error == JSON_NO_MEMORY) return err_set(err, MAR_ENOMEM, "%s: no memory for its JSON", label);
    if (error != JSON_OK)
        return err_set(err, MAR_EFORMAT, "%s: no JSON at byte %zu of %zu%s", label, out->at, length,
                       error == JSON_DEEP ? ": too many levels" : "");
    if (out->not_utf8 == length && out->values[0].type == JSON_OBJECT) return MAR_OK;
    const int is_utf8 = out->not_utf8 == length;
    json_free(out);
    return err_set(err, MAR_EFORMAT, is_utf8 ? "%s: its JSON is no object" : "%s: its JSON is not UTF-8", label);
}

/* Returns whether `names`, separated by spaces, have this one. */
static int is_listed(const char *names, const json_value *name)
{
    for (const char *at = names; *at;) {
        const size_t length = strcspn(at, " ");
        if (length == name->length && memcmp(at, name->text, length) == 0) return 1;
        at += length + (at[length] == ' ');
    }
    return 0;
}

mar_status text_json_only(const json_value *v, const char *what, const char *names, const char *label, mar_err *err)
{
    if (v->type != JSON_OBJECT) return err_set(err, MAR_EFORMAT, "%s: %s: is no object", label, what);
    for (const json_value *n = v + 1; n < json_next(v); n = json_next(n + 1)) {
        if (!is_listed(names, n))
            return err_set(err, MAR_EFORMAT, "%s: %s: \"%s\" is not supported", label, what, n->text);
        if (json_member(v, n->text) != n + 1)
            return err_set(err, MAR_EFORMAT, "%s: %s: \"%s\" is there twice", label, what, n->text);
    }
    return MAR_OK;
}

const json_value *text_json_given(const json_value *object, const char *name)
{
    const json_value *v = json_member(object, name);
    return v && v->type != JSON_NULL ? v : NULL;
}

mar_status text_json_flag(const json_value *object, const char *what, const char *name, int otherwise, int *out,
                          const char *label, mar_err *err)
{
    const json_value *v = json_member(object, name);
    *out = v ? v->type == JSON_TRUE : otherwise;
    if (v ? v->type == JSON_TRUE || v->type == JSON_FALSE : otherwise >= 0) return MAR_OK;
    return err_set(err, MAR_EFORMAT, "%s: %s: \"%s\" is no boolean", label, what, name);
}

mar_status text_json_string(const json_value *object, const char *what, const char *name, const json_value **out,
                            const char *label, mar_err *err)
{
    *out = json_member(object, name);
    if (*out && (*out)->type == JSON_STRING) return MAR_OK;
    return err_set(err, MAR_EFORMAT, "%s: %s: \"%s\" is no string", label, what, name);
}
