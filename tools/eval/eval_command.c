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
    if (!o->images || options_find(o->given, "out")->given) eval_result_print_page(o->out);
    return 0;
}

int cmd_eval(int argc, char **argv)
{
    static eval_result r; /* too large for the stack */
    eval_options o;
    option_set set;
    progress bar;
    int done = 1;
    eval_options_set_up(&o, &set);
    int status = options_read(&set, argc, argv);
    if (status != OPTIONS_RUN) return status;
    if (eval_options_done(&o, &set) != 0) return 1;
    progress_start(&bar, o.quiet);
    status = o.images ? eval_images_run(&o, &bar, &r) : eval_model_run(&o, &bar, &r, &done);
    return status == 0 && done ? print_result(&o, &r) : status;
}
