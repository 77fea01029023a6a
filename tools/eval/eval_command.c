/* mar eval: measures the quality of a model's images, or of images made elsewhere. */
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/cli/options.h"
#include "tools/eval/options.h"
#include "tools/cli/subcommands.h"

static int print_result(const eval_options *o, const eval_result *r)
{
    if (o->json) return tool_print_json(eval_result_json(r), 0);
    if (o->quiet) return 0;
    eval_result_print(r);
    eval_result_print_page(o->out);
    return 0;
}

static int evaluate_model(eval_options *o, progress *bar)
{
    static eval_result r; /* too large for the stack */
    int done;
    const int status = eval_model_run(o, bar, &r, &done);
    return status == 0 && done ? print_result(o, &r) : status;
}

int cmd_eval(int argc, char **argv)
{
    eval_options o;
    option_set set;
    progress bar;
    eval_options_set_up(&o, &set);
    int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (eval_options_done(&o, &set) != 0) return 1;
    progress_start(&bar, o.quiet);
    if (o.images) return eval_images_run(&o, &bar);
    return o.sweep ? eval_sweep_run(&o, &bar) : evaluate_model(&o, &bar);
}
