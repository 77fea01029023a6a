/* Recognises and describes a file of Inception-v3. */
#include "eval/inception.h"
#include "eval/inception_layers.h"

#include <stdio.h>

int eval_inception_recognise(const wt_file *f)
{
    return wt_find(f, "Mixed_5b.branch1x1.conv.weight") || wt_find(f, "Mixed_7c.branch1x1.conv.weight");
}

mar_status eval_inception_derive(const wt_file *f, eval_inception_config *config, mar_err *err)
{
    inception_layers l;
    const mar_status status = inception_layers_derive(f, &l, err);
    *config = (eval_inception_config){l.features, l.classes, l.spatial_channels * l.spatial_side * l.spatial_side,
                                      l.parameters};
    return status;
}

void eval_inception_tensors(const wt_file *f, eval_inception_visitor *visit, void *user)
{
    static const char *const norm[] = {"weight", "bias", "running_mean", "running_var"};
    char name[INCEPTION_NAME + 32];
    inception_layers l;
    mar_err err;
    if (inception_layers_derive(f, &l, &err) != MAR_OK) return;
    for (int i = 0; i < l.count; i++) {
        const inception_step *s = &l.steps[i];
        if (s->kind != INCEPTION_CONV) continue;
        snprintf(name, sizeof name, "%s.conv.weight", s->name);
        visit(user, name, 4, (int64_t[]){s->out, s->in, s->kernel_h, s->kernel_w});
        for (size_t j = 0; j < sizeof norm / sizeof *norm; j++) {
            snprintf(name, sizeof name, "%s.bn.%s", s->name, norm[j]);
            visit(user, name, 1, (int64_t[]){s->out});
        }
    }
    visit(user, "fc.weight", 2, (int64_t[]){l.classes, l.features});
    visit(user, "fc.bias", 1, (int64_t[]){l.classes});
}
