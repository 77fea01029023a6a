#include "tools/file_options.h"

#include "tools/cli/command.h"
#include "tools/cli/run_options.h"

void file_options_add(file_options *o, option_set *set)
{
    static const char *const names[FILE_OPTIONS] = {"heads", "seq_len", "patch_size", "weights"};
    *o = (file_options){0};
    for (int i = 0; i < FILE_OPTIONS; i++) {
        const mar_param *p = run_option(names[i]);
        o->rows[i] = option_at(p, i ? p->offset : offsetof(file_options, heads), "Options");
        options_add(set, &o->rows[i], i ? (void *)&o->library : o, 0);
    }
}

int file_options_open(const file_options *o, mar **library, int *heads)
{
    return run_read_heads(o->heads, heads) != 0 || tool_open_files(&o->library, library) != 0;
}

int file_options_refuse(mar *library)
{
    return tool_error("%s", mar_error(library));
}
