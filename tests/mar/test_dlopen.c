/* Tests libmar as a plugin: opened by name, twice from two files, closed in either order. The demo
 * model is beside the copies, as in a Python package. */
#include "tests/support/support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    void *file;
    mar_status (*open)(const mar_options *options, mar **out);
    void (*close)(mar *m);
    mar_status (*load)(mar *m, const char *path, int heads, mar_model **out);
    void (*free)(mar_model *model);
} library;

/* Opens a copy of the library in a child. The exit status tells what is missing. */
static library open_copy(const char *path)
{
    library l = {dlopen(path, RTLD_NOW | RTLD_LOCAL), NULL, NULL, NULL, NULL};
    if (!l.file) _exit(10);
    *(void **)&l.open = dlsym(l.file, "mar_open");
    *(void **)&l.close = dlsym(l.file, "mar_close");
    *(void **)&l.load = dlsym(l.file, "mar_model_load");
    *(void **)&l.free = dlsym(l.file, "mar_model_free");
    if (!l.open || !l.close || !l.load || !l.free) _exit(11);
    return l;
}

/* Loads a model, which packs its weights. */
static void use(const library *l)
{
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .threads = 2, .backend = MAR_BACKEND_CPU};
    mar *m = NULL;
    mar_model *model = NULL;
    if (l->open(&options, &m) != MAR_OK) _exit(12);
    if (l->load(m, "demo", 0, &model) != MAR_OK) _exit(13);
    l->free(model);
    l->close(m);
}

static void copy(const char *from, const char *to)
{
    char line[2048];
    snprintf(line, sizeof line, "install -D '%s' '%s'", from, to);
    if (system(line) != 0) fail_msg("%s", line);
}

TEST_CASE(two_copies)
{
    char *directory = test_directory(), a[512], b[512], model[512];
    snprintf(a, sizeof a, "%s/a.so", directory);
    snprintf(b, sizeof b, "%s/b.so", directory);
    copy(LIBMAR, a);
    copy(LIBMAR, b);
    snprintf(model, sizeof model, "%s/share/libmar/demo/target.safetensors", directory);
    copy("weights/demo/target.safetensors", model);
    for (int order = 0; order < 2; order++) {
        const pid_t child = fork();
        if (child == 0) {
            const library first = open_copy(a), second = open_copy(b);
            use(&first);
            use(&second);
            use(&first);
            dlclose(order ? second.file : first.file);
            use(order ? &first : &second);
            dlclose(order ? first.file : second.file);
            const library again = open_copy(a);
            use(&again);
            dlclose(again.file);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0) fail_msg("order %d: wait status %x", order, status);
    }
}
