/* The demo models, files of the data folder. */
#include "base/data.h"
#include "weights/weights.h"

#include <stdio.h>
#include <string.h>

static const wt_demo models[] = {
    {"demo", "target.safetensors"},
    {"demo-draft", "draft.safetensors"},
    {"demo-discrete", "discrete-target.safetensors"},
    {"demo-discrete-draft", "discrete-draft.safetensors"},
    {"demo-discrete-eagle", "discrete-eagle.safetensors"},
    {"demo-sphere", "sphere.safetensors"},
    {"demo-sphere-draft", "sphere-draft.safetensors"},
    {"demo-t2i", "t2i.safetensors"},
    {"demo-mgpt", "mgpt"},
    {"demo-harmon", "harmon"},
    {"demo-nextstep", "nextstep"},
};
static const wt_demo decoders[] = {
    {"demo", "vae.safetensors"},
    {"demo-vae", "vae.safetensors"},
    {"demo-discrete", "discrete-vq.safetensors"},
    {"demo-discrete-vq", "discrete-vq.safetensors"},
    {"demo-sphere", "sphere.safetensors"},
    {"demo-t2i", "discrete-vq.safetensors"},
    {"demo-mgpt", "mgpt-vq.safetensors"},
    {"demo-mgpt-vq", "mgpt-vq.safetensors"},
    {"demo-harmon", "harmon"},
    {"demo-nextstep", "nextstep"},
};
/* Folders as Hugging Face writes them; for demo-t2i the one that encodes its prompts. */
static const wt_demo folders[] = {
    {"demo-t5", "t5"},
    {"demo-t2i", "t5"},
    {"demo-mgpt", "mgpt"},
    {"demo-harmon", "harmon"},
    {"demo-nextstep", "nextstep"},
};
enum {
    MODELS = sizeof models / sizeof *models,
    DECODERS = sizeof decoders / sizeof *decoders,
    FOLDERS = sizeof folders / sizeof *folders
};

static const wt_demo *demo_find(const wt_demo *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, list[i].name) == 0) return &list[i];
    return NULL;
}

const wt_demo *wt_demo_mar(const char *name)
{
    return demo_find(models, MODELS, name);
}

const wt_demo *wt_demo_vae(const char *name)
{
    return demo_find(decoders, DECODERS, name);
}

mar_status wt_demo_folder(const char *name, char path[PATH_MAX], mar_err *err)
{
    char file[64];
    const wt_demo *demo = demo_find(folders, FOLDERS, name);
    *path = '\0';
    if (!demo) return MAR_OK;
    snprintf(file, sizeof file, "demo/%s/config.json", demo->file);
    const mar_status status = data_find(file, path, err);
    if (status == MAR_OK) path[strlen(path) - strlen("/config.json")] = '\0';
    return status;
}

mar_status wt_open_demo(const wt_demo *demo, wt_file **out, mar_err *err)
{
    char name[64], path[PATH_MAX] = "";
    *out = NULL;
    const int is_folder = demo_find(folders, FOLDERS, demo->name) && !strchr(demo->file, '.');
    snprintf(name, sizeof name, "demo/%s", demo->file);
    mar_status status = is_folder ? wt_demo_folder(demo->name, path, err) : data_find(name, path, err);
    if (status == MAR_OK)
        status = is_folder ? wt_open_folder(path, MAR_WEIGHTS_AUTO, out, err) : wt_open(path, out, err);
    if (status == MAR_OK) wt_set_label(*out, demo->name);
    return status;
}
