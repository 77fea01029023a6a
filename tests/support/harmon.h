/* A small Harmon in the layouts of its releases. Its weights are those of tests/golden/make_harmon.py, which makes
 * tests/golden/data/harmon.safetensors of them. */
#ifndef TESTS_HARMON_H
#define TESTS_HARMON_H

typedef enum {
    HARMON_FOLDER,  /* Hugging Face's folder: config.json, model.safetensors with vae.*, a tokenizer.json */
    HARMON_RELEASE, /* harmon_0.5b.pth without vae.*, kl16.ckpt, and Qwen2.5/ with vocab.json and merges.txt */
    HARMON_UNIPIC   /* the same with siglip2.* and siglip2_proj.*, as pytorch_model.bin */
} harmon_kind;

/* Writes one into a folder that exists. A failure fails the test. */
void harmon_write(const char *folder, harmon_kind kind);

#endif
