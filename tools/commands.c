#include "tools/cli/subcommands.h"

const tool_command commands[] = {
    {"generate", "make images of classes or prompts and write them as pictures", cmd_generate},
    {"captions", "encode prompts once, for text-to-image models", cmd_captions},
    {"edit", "make a part of a picture anew: inpainting, outpainting, variations", cmd_edit},
    {"inspect", "check and print a .safetensors, .pth, .pt, .ckpt or folder", cmd_inspect},
    {"convert", "write a checkpoint as safetensors: f32, bf16, f16, int8 or int4", cmd_convert},
    {"bench", "measure seconds per image and where they go", cmd_bench},
    {"classes", "list the classes of ImageNet, or those with given words", cmd_classes},
    {"methods", "list the accelerators: parameters, source, guarantee", cmd_methods},
    {"fidelity", "compare a faster run with a reference: speed, distance, a page", cmd_fidelity},
    {"eval", "judge a model's images, or others: FID, Inception score, a page", cmd_eval},
    {"serve", "serve images over HTTP: OpenAI's API, jobs with progress, a page", cmd_serve},
    {"stats", "write reference statistics of images for mar eval", cmd_stats},
    {"completion", "write the completion script of bash, zsh or fish", cmd_completion},
    {0},
};
