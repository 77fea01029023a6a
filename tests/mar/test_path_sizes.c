/* Tests that batches of spec path are refused if their rounds have more rows than an int counts. The refusal comes
 * before any allocation. No session accepts such a batch of the demo's small images, so the test calls the engine. */
#include "mar/masked_runner.h"
#include "mar/accel/registry.h"
#include "tests/support/demo.h"

#include <stdio.h>
#include <string.h>

TEST_CASE(batches_that_are_too_large)
{
    /* The smallest batches with a product above INT_MAX / 2. The first product is images x gamma x tokens of a round.
     * The second is twice images x tokens of a round x head_spec. All 64 steps of one token are one round. */
    static const struct {
        const char *options;
        int with_draft, images, gamma;
    } cases[] = {
        {"num_iter 64, gamma 64", 0, 1 << 18, 64},
        {"num_iter 64, gamma 64, context prefix", 1, 1 << 18, 64},
        {"num_iter 64, gamma 200", 0, 1 << 18, 64},
        {"num_iter 64, gamma auto, head_spec 64", 0, 1 << 19, 16},
        {"num_iter 64, gamma 64, head_spec 64", 0, 1 << 17, 64},
        {"num_iter 64, gamma 64, head_spec 64", 1, 1 << 17, 64},
    };
    const demo d = demo_open(1);
    kern_device *device = d.model->m->device;
    kern_queue *k;
    mar_err err = {0};
    assert_ok(device->core->queue_create(device, &k, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[96];
        mar_engine_state *g = (mar_engine_state *)&d;
        mar_params p = params_with(cases[i].options);
        p.spec = "path";
        p.cfg = 1;
        p.num_sampling_steps = 100;
        if (cases[i].with_draft) p.draft = d.draft;
        mar_accels_on ways;
        assert_ok(mar_accels_resolve_params(&p, d.model->engine, &ways, &err), &err);
        const mar_status status = d.model->engine->create(d.model, NULL, k, &p, ways.on, cases[i].images, &g, &err);
        snprintf(why, sizeof why, "batch of %d images with --gamma %d: too large", cases[i].images, cases[i].gamma);
        if (status != MAR_EARG || strcmp(err.text, why) != 0)
            fail_msg("%s, %d images: %d \"%s\", expected \"%s\"", cases[i].options, cases[i].images, status, err.text,
                     why);
        assert_null(g);
    }
    device->core->queue_free(k);
    demo_close(d);
}
