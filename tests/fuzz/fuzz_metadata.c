/* A file's tensors and metadata: the shape of a model or autoencoder, the report of mar inspect, and whether mar
 * convert accepts the file. A file of some sixty tensors is too large for mutation of its bytes. The input is
 * therefore a list of changes to the table of a small model. The file is made from that table. */
#include "tests/fuzz/fuzz.h"

#include "mar_files.h"

#include "families/mar.h"
#include "tests/support/families.h"
#include "nets/t5.h"
#include "mar/api/kinds.h"
#include "vae/vae.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 192, NAME_SIZE = 96, TEXT_SIZE = 64, HEADER_MAX = 48 * 1024, DATA_MAX = 1 << 20, PAIRS = 6 };

typedef struct {
    char name[NAME_SIZE];
    wt_dtype dtype;
    int rank;
    int64_t shape[WT_MAX_RANK];
} entry;

static entry entries[ENTRIES];
static int n_entries;
static char pairs[PAIRS][2][TEXT_SIZE];
static int n_pairs;

/* The file: a header that ends at HEADER_MAX, then data. The data are zeros except for the first bytes. */
static uint8_t image[HEADER_MAX + DATA_MAX];
static struct {
    const uint8_t *data;
    size_t size;
    wt_file *opened;
} file;

/* Makes mar_inspect use the file that is already open. */
mar_status __wrap_wt_open_source(const mar_source *source, mar_weights which, wt_file **out, mar_err *err);
void __wrap_wt_close(wt_file *f);
void __real_wt_close(wt_file *f);

mar_status __wrap_wt_open_source(const mar_source *source, mar_weights which, wt_file **out, mar_err *err)
{
    (void)source, (void)which, (void)err;
    *out = file.opened;
    return MAR_OK;
}

void __wrap_wt_close(wt_file *f)
{
    if (f != file.opened) __real_wt_close(f);
}

/* cJSON's memory, released at once after each input: most of the time went into allocations. */
static struct {
    _Alignas(16) unsigned char bytes[2 << 20];
    size_t used;
} arena;

static void *arena_take(size_t size)
{
    size = (size + 15) / 16 * 16;
    if (size > sizeof arena.bytes - arena.used) return NULL;
    arena.used += size;
    return arena.bytes + arena.used - size;
}

static void arena_give_back(void *p)
{
    (void)p;
}

/* --- the table --------------------------------------------------------------------------------------------- */

/* The input, read byte by byte; zeros past its end. */
typedef struct {
    const uint8_t *at, *end;
} input;

static uint8_t take(input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

static void add_entry(void *user, const char *name, int rank, const int64_t *shape)
{
    const wt_dtype *dtype = user;
    if (n_entries == ENTRIES) return;
    entry *e = &entries[n_entries++];
    *e = (entry){.dtype = *dtype, .rank = rank};
    snprintf(e->name, sizeof e->name, "%s", name);
    memcpy(e->shape, shape, (size_t)rank * sizeof *shape);
}

static void start_model(wt_dtype dtype)
{
    const mar_model_config c = {.width = 4,
                                .encoder_depth = 1,
                                .decoder_depth = 1,
                                .heads = 2,
                                .mlp_hidden = 4,
                                .buffer = 2,
                                .seq_len = 4,
                                .token_dim = 2,
                                .classes = 3,
                                .head_width = 4,
                                .head_depth = 1};
    family_mar_tensors(&c, add_entry, &dtype);
}

/* Adds the few tensors that determine the configuration. */
static void start_small_model(wt_dtype dtype)
{
    add_entry(&dtype, "class_emb.weight", 2, (int64_t[]){3, 4});
    add_entry(&dtype, "z_proj.weight", 2, (int64_t[]){4, 2});
    add_entry(&dtype, "encoder_blocks.0.mlp.fc1.weight", 2, (int64_t[]){4, 4});
    add_entry(&dtype, "encoder_pos_embed_learned", 3, (int64_t[]){1, 6, 4});
    add_entry(&dtype, "diffusion_pos_embed_learned", 3, (int64_t[]){1, 4, 4});
    add_entry(&dtype, "decoder_blocks.0.norm1.weight", 1, (int64_t[]){4});
    add_entry(&dtype, "diffloss.net.input_proj.weight", 2, (int64_t[]){4, 2});
    add_entry(&dtype, "diffloss.net.res_blocks.0.in_ln.weight", 1, (int64_t[]){4});
}

static void start_autoencoder(wt_dtype dtype)
{
    add_entry(&dtype, "post_quant_conv.weight", 4, (int64_t[]){2, 2, 1, 1});
    add_entry(&dtype, "decoder.conv_in.weight", 4, (int64_t[]){32, 2, 3, 3});
    add_entry(&dtype, "decoder.up.0.block.0.conv2.weight", 4, (int64_t[]){32, 32, 3, 3});
    add_entry(&dtype, "decoder.up.0.block.1.norm1.weight", 1, (int64_t[]){32});
    add_entry(&dtype, "encoder.conv_in.weight", 4, (int64_t[]){32, 3, 3, 3});
}

static void start_vq(wt_dtype dtype)
{
    add_entry(&dtype, "quantize.embedding.weight", 2, (int64_t[]){3, 2});
    add_entry(&dtype, "quantize.codebook_used", 1, (int64_t[]){4});
    add_entry(&dtype, "post_quant_conv.weight", 4, (int64_t[]){2, 2, 1, 1});
    add_entry(&dtype, "decoder.conv_blocks.0.res.0.conv2.weight", 4, (int64_t[]){32, 32, 3, 3});
    add_entry(&dtype, "decoder.conv_blocks.0.res.1.norm1.weight", 1, (int64_t[]){32});
}

static void start_vit(wt_dtype dtype)
{
    add_entry(&dtype, "decoder.freqs_cis", 3, (int64_t[]){5, 4, 2});
    add_entry(&dtype, "decoder.conv_in.1.weight", 4, (int64_t[]){8, 8, 3, 3});
    add_entry(&dtype, "decoder.register_token.weight", 2, (int64_t[]){1, 8});
    add_entry(&dtype, "decoder.layers.0.feed_forward.w2.weight", 2, (int64_t[]){8, 4});
    add_entry(&dtype, "decoder.unpatchify.1.net.0.block.2.weight", 4, (int64_t[]){8, 16, 4, 4});
    add_entry(&dtype, "post_quant_proj.weight", 2, (int64_t[]){8, 2});
}

static void start_detok(wt_dtype dtype)
{
    add_entry(&dtype, "decoder.positional_embedding", 3, (int64_t[]){1, 1, 64});
    add_entry(&dtype, "decoder.decoder_embed.weight", 2, (int64_t[]){64, 2});
    add_entry(&dtype, "decoder.transformer.0.mlp.w3.weight", 2, (int64_t[]){64, 4});
    add_entry(&dtype, "decoder.ffn.1.weight", 4, (int64_t[]){3, 64, 1, 1});
    add_entry(&dtype, "mean", 1, (int64_t[]){2});
    add_entry(&dtype, "std", 1, (int64_t[]){2});
}

static void start_llamagen(wt_dtype dtype, int captions)
{
    const causal_shape s = {.names = &llamagen_names,
                            .joined_qkv = 1,
                            .width = 8,
                            .depth = 2,
                            .hidden = 4,
                            .vocabulary = 3,
                            .rows = 3,
                            .classes = captions ? 0 : 2,
                            .prefix = captions ? 3 : 1,
                            .caption_dim = captions ? 2 : 0};
    causal_tensors(&s, add_entry, &dtype);
}

static void start_spherear(wt_dtype dtype)
{
    const family_facts c = {.shape = {.names = &sphere_names,
                                      .joined_qkv = 1,
                                      .joined_w13 = 1,
                                      .width = 8,
                                      .depth = 1,
                                      .hidden = 4,
                                      .token_dim = 4,
                                      .seq_len = 4,
                                      .classes = 2,
                                      .prefix = 2},
                            .head = {.family = DIFF_HEAD_SPHEREAR,
                                     .width = 4,
                                     .depth = 2,
                                     .channels = 4,
                                     .z_dim = 8,
                                     .hidden = 6,
                                     .ada_layers = 1}};
    causal_tensors(&c.shape, add_entry, &dtype);
    diff_head_tensors(&c.head, add_entry, &dtype);
}

static void start_eagle(wt_dtype dtype)
{
    const eagle_config c = {.width = 8, .hidden = 4, .bias = 1, .first_norm = 1};
    eagle_config_tensors(&c, add_entry, &dtype);
}

/* A text encoder of one layer. */
static void start_t5(wt_dtype dtype)
{
    static const struct {
        const char *name;
        int64_t out, in;
    } all[] = {{"0.SelfAttention.q", 6, 4},     {"0.SelfAttention.k", 6, 4},
               {"0.SelfAttention.v", 6, 4},     {"0.SelfAttention.o", 4, 6},
               {"1.DenseReluDense.wi_0", 5, 4}, {"1.DenseReluDense.wi_1", 5, 4},
               {"1.DenseReluDense.wo", 4, 5},   {"0.layer_norm", 4, 0},
               {"1.layer_norm", 4, 0},          {"0.SelfAttention.relative_attention_bias", 8, 2}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "encoder.block.0.layer.%s.weight", all[i].name);
        add_entry(&dtype, name, all[i].in ? 2 : 1, (int64_t[]){all[i].out, all[i].in});
    }
    add_entry(&dtype, "shared.weight", 2, (int64_t[]){9, 4});
    add_entry(&dtype, "encoder.final_layer_norm.weight", 1, (int64_t[]){4});
    add_entry(&dtype, "encoder.embed_tokens.weight", 2, (int64_t[]){9, 4});
    add_entry(&dtype, "decoder.final_layer_norm.weight", 1, (int64_t[]){4});
}

static int64_t dimension(input *in)
{
    static const int64_t large[] = {
        32,      64,      65,        128,       255,       65535,     65536,           65537,
        1 << 20, 1 << 21, 1ll << 31, 1ll << 32, 1ll << 40, 1ll << 52, (1ll << 53) - 1, 1280};
    const uint8_t b = take(in);
    return b < 0xf0 ? b % 48 : large[b - 0xf0];
}

static void take_text(input *in, char *text, size_t size)
{
    size_t n = take(in) % size;
    for (size_t i = 0; i < n; i++) text[i] = (char)(in->at < in->end ? take(in) : '.');
    text[n] = '\0';
}

/* Replaces a number in a name, as in "encoder_blocks.0.". */
static void renumber(entry *e, uint8_t value)
{
    static const char *const numbers[] = {"1",  "2",  "7",  "8", "15",         "16",
                                          "99", "00", "-1", "",  "2147483648", "99999999999999999999"};
    char name[NAME_SIZE];
    char *digit = strpbrk(e->name, "0123456789");
    if (!digit) return;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(digit - e->name), e->name,
             numbers[value % (sizeof numbers / sizeof *numbers)], digit + 1);
    memcpy(e->name, name, sizeof name);
}

static void change_metadata(input *in)
{
    if (n_pairs == PAIRS) return;
    const uint8_t how = take(in);
    char(*pair)[TEXT_SIZE] = pairs[n_pairs++];
    strcpy(pair[0], how & 16  ? how & 1 ? "mar.decoder_heads" : "mar.patch_size"
                    : how & 1 ? "mar.heads"
                    : how & 8 ? how & 32 ? "mar.vae_heads" : "mar.seq_len"
                              : "mar.kind");
    if (how & 4) take_text(in, pair[0], TEXT_SIZE);
    if (how & 2)
        snprintf(pair[1], TEXT_SIZE, "%d", (int)(int8_t)take(in));
    else
        take_text(in, pair[1], TEXT_SIZE);
}

/* Adds the scales of int8 weights. */
static void add_scale(const entry *of)
{
    if (n_entries == ENTRIES) return;
    entry *e = &entries[n_entries++];
    *e = (entry){.dtype = WT_F32, .rank = 1, .shape = {of->shape[0]}};
    memcpy(e->name, of->name, sizeof e->name);
    e->name[NAME_SIZE - 8] = '\0';
    strcat(e->name, "_scale");
}

/* Applies one change. `fill` is the first bytes of the data. */
static void change(input *in, uint8_t *fill)
{
    static const char *const names[] = {"encoder.down.0.attn.0.q.weight",    "decoder.up.1.block.0.conv2.weight",
                                        "decoder.up.0.attn.0.q.weight",      "decoder.mid.block_1.norm1.weight",
                                        "encoder_blocks.1.attn.qkv.weight",  "diffloss.net.time_embed.mlp.0.weight",
                                        "decoder.up.0.block.2.norm1.weight", "fake_latent"};
    const uint8_t op = take(in) % 12;
    wt_dtype f32 = WT_F32;
    entry *e = n_entries ? &entries[take(in) % n_entries] : NULL;
    if (!e && op != 0) return;
    switch (op) {
    case 0:
        add_entry(&f32, names[take(in) % 8], 2, (int64_t[]){4, 4});
        break;
    case 1:
    case 2:
    case 3:
        if (e->rank > 0) e->shape[take(in) % e->rank] = dimension(in);
        break;
    case 4:
        e->dtype = (wt_dtype)(take(in) % (WT_BOOL + 1));
        if (e->dtype == WT_I8) add_scale(e);
        break;
    case 5:
        e->rank = take(in) % (WT_MAX_RANK + 1);
        break;
    case 6:
        *e = entries[--n_entries];
        break;
    case 7:
        take_text(in, e->name, TEXT_SIZE);
        break;
    case 8:
        renumber(e, take(in));
        break;
    case 9:
        if (n_entries == ENTRIES) break;
        entries[n_entries] = *e;
        renumber(&entries[n_entries++], take(in));
        break;
    case 10:
        change_metadata(in);
        break;
    default:
        *fill = take(in);
    }
}

/* --- the file ---------------------------------------------------------------------------------------------- */

static void put_string(fuzz_bytes *out, const char *text)
{
    fuzz_text(out, "\"");
    for (; *text; text++) {
        char escaped[8];
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '"' || c == '\\') {
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
            fuzz_text(out, escaped);
        } else {
            fuzz_put(out, text, 1);
        }
    }
    fuzz_text(out, "\"");
}

/* Writes one tensor's entry. Its bytes begin at *offset, or nowhere if there are too many. */
static void put_entry(fuzz_bytes *out, const entry *e, uint64_t *offset)
{
    char text[64];
    uint64_t bytes = wt_dtype_size(e->dtype);
    put_string(out, e->name);
    snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":[", wt_dtype_name(e->dtype));
    fuzz_text(out, text);
    for (int i = 0; i < e->rank; i++) {
        snprintf(text, sizeof text, "%s%" PRId64, i ? "," : "", e->shape[i]);
        fuzz_text(out, text);
        if (__builtin_mul_overflow(bytes, (uint64_t)e->shape[i], &bytes)) bytes = UINT64_MAX;
    }
    if (bytes > DATA_MAX - *offset) bytes = 0;
    snprintf(text, sizeof text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", *offset, *offset + bytes);
    fuzz_text(out, text);
    *offset += bytes;
}

static void make_file(uint8_t fill)
{
    static uint8_t header[HEADER_MAX];
    fuzz_bytes out = {.data = header, .capacity = HEADER_MAX - 8};
    uint64_t offset = 0;
    fuzz_text(&out, "{\"__metadata__\":{");
    for (int i = 0; i < n_pairs; i++) {
        if (i) fuzz_text(&out, ",");
        put_string(&out, pairs[i][0]);
        fuzz_text(&out, ":");
        put_string(&out, pairs[i][1]);
    }
    fuzz_text(&out, "}");
    for (int i = 0; i < n_entries; i++) {
        fuzz_text(&out, ",");
        put_entry(&out, &entries[i], &offset);
    }
    fuzz_text(&out, "}");
    uint8_t *begin = image + HEADER_MAX - out.size;
    memcpy(begin, header, out.size);
    for (int i = 0; i < 8; i++) begin[i - 8] = (uint8_t)((uint64_t)out.size >> 8 * i);
    memset(image + HEADER_MAX, fill, 64);
    file.data = begin - 8;
    file.size = 8 + out.size + offset;
}

/* --- what must be true ------------------------------------------------------------------------------------- */

typedef struct {
    const wt_file *f;
    int count, found; /* tensors of the model; those in the file with their shape and a float type */
    int ignored;      /* harmless tensors outside the model, and scales */
    long parameters;
} tally;

/* Returns whether t is a matrix that may be int8, with scales of the right type and shape. */
static int is_int8(const wt_file *f, const wt_tensor *t)
{
    const wt_tensor *scale = wt_scale_of(f, t);
    const int may = family_mar_is_int8(t->name) || family_is_int8(t->name) || t5_config_is_int8(t->name);
    return may && scale && scale->dtype == WT_F32 && scale->rank == 1 && scale->shape[0] == t->shape[0];
}

static void visit(void *user, const char *name, int rank, const int64_t *shape)
{
    tally *v = user;
    long count = 1;
    fuzz_check_line("a model's tensor", name);
    if (rank < 1 || rank > 4) fuzz_fail("%s: rank %d", name, rank);
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1 || __builtin_mul_overflow(count, shape[i], &count))
            fuzz_fail("%s: dimension %d is %lld", name, i, (long long)shape[i]);
    }
    if (__builtin_add_overflow(v->parameters, count, &v->parameters)) fuzz_fail("%s: too many parameters", name);
    v->count++;
    const wt_tensor *t = wt_find(v->f, name);
    if (!t || t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0) return;
    const int int8 = is_int8(v->f, t);
    v->found += int8 || t->dtype == WT_F64 || t->dtype == WT_F32 || t->dtype == WT_F16 || t->dtype == WT_BF16;
    v->ignored += int8;
}

/* Derives the shape of a file of the LlamaGen family, and checks it if there is one. Returns the kind. */
static mar_kind derive_llamagen(const wt_file *f, int heads, tally *v)
{
    family_facts config;
    mar_err err = {0};
    const mar_status status = derive_facts(&family_llamagen, f, (wt_asked){.heads = heads}, &config, &err);
    if (status == MAR_EARG)
        fuzz_check_line("derive", err.text);
    else
        fuzz_check_error("derive", status, &err);
    if (status != MAR_OK) return MAR_KIND_UNKNOWN;
    const causal_shape c = config.shape;
    if (!causal_side(c.seq_len) || c.heads < 1 || c.width % c.heads || c.width / c.heads % 4 || c.depth < 1 ||
        c.prefix < 1 || (c.classes > 0) == (c.caption_dim > 0))
        fuzz_fail("a model of %d tokens, %d heads, width %d, depth %d, prefix %d, %d classes, captions of %d",
                  c.seq_len, c.heads, c.width, c.depth, c.prefix, c.classes, c.caption_dim);
    causal_tensors(&c, visit, v);
    if (v->parameters != config.config.parameters)
        fuzz_fail("%ld parameters of %ld", v->parameters, config.config.parameters);
    for (int i = 0; i < wt_count(f); i++) v->ignored += family_llamagen.ignores(wt_at(f, i)->name);
    return MAR_KIND_LLAMAGEN;
}

static mar *handle;

/* Derives the shape of a SphereAR model, with the image decoder if the file has one. Returns the kind. */
static mar_kind derive_spherear(const wt_file *f, int heads, tally *v)
{
    const wt_kind *kind = mar_kind_of(f);
    family_facts facts;
    mar_err err = {0};
    const mar_status status = derive_facts(kind, f, (wt_asked){.heads = heads}, &facts, &err);
    if (status == MAR_EARG)
        fuzz_check_line("derive", err.text);
    else
        fuzz_check_error("derive", status, &err);
    if (status != MAR_OK) return MAR_KIND_UNKNOWN;
    const causal_shape *c = &facts.shape;
    const diff_head_shape *h = &facts.head;
    if (!causal_side(c->seq_len) || c->heads < 1 || c->width % c->heads || c->width / c->heads % 4 || c->depth < 1 ||
        c->prefix < 1 || c->classes < 1 || h->channels < 1 || h->ada_layers < 1 || h->depth % h->ada_layers)
        fuzz_fail("a model of %d tokens of %d channels, %d heads, width %d, depth %d, prefix %d, %d classes, %d adaLN "
                  "layers for %d blocks",
                  c->seq_len, h->channels, c->heads, c->width, c->depth, c->prefix, c->classes, h->ada_layers,
                  h->depth);
    causal_tensors(c, visit, v);
    diff_head_tensors(h, visit, v);
    if (v->parameters != facts.config.parameters)
        fuzz_fail("%ld parameters of %ld", v->parameters, facts.config.parameters);
    if (facts.vae.depth) vae_config_tensors(f, &facts.vae, visit, v);
    for (int i = 0; i < wt_count(f); i++) v->ignored += kind->ignores(wt_at(f, i)->name);
    return MAR_KIND_SPHEREAR;
}

static mar_kind derive_eagle(const wt_file *f, int heads, tally *v)
{
    eagle_config c;
    mar_err err = {0};
    const mar_status status = eagle_config_derive(f, heads, &c, &err);
    if (status == MAR_EARG)
        fuzz_check_line("eagle_config_derive", err.text);
    else
        fuzz_check_error("eagle_config_derive", status, &err);
    if (status != MAR_OK) return MAR_KIND_UNKNOWN;
    eagle_config_tensors(&c, visit, v);
    if (v->parameters != c.parameters) fuzz_fail("%ld parameters of %ld", v->parameters, c.parameters);
    return MAR_KIND_EAGLE;
}

static mar_kind derive_t5(const wt_file *f, tally *v)
{
    t5_config c;
    mar_err err = {0};
    const mar_status status = t5_config_derive(f, &c, &err);
    fuzz_check_error("t5_config_derive", status, &err);
    if (status != MAR_OK) return MAR_KIND_UNKNOWN;
    t5_config_tensors(f, &c, visit, v);
    if (v->parameters != c.parameters) fuzz_fail("%ld parameters of %ld", v->parameters, c.parameters);
    for (int i = 0; i < wt_count(f); i++)
        v->ignored += t5_config_ignores(wt_at(f, i)->name) || t5_config_repeats(f, wt_at(f, i)->name);
    return MAR_KIND_T5;
}

/* Returns the file's kind, and the tally of that model's tensors. */
static mar_kind derive(const wt_file *f, int heads, tally *v)
{
    mar_model_config model;
    mar_vae_config vae;
    mar_err err = {0};
    *v = (tally){.f = f};
    if (family_mar.recognise(f)) {
        const mar_status status = family_mar_derive(f, &(wt_asked){.heads = heads}, &model, &err);
        if (status == MAR_EARG)
            fuzz_check_line("derive", err.text);
        else
            fuzz_check_error("derive", status, &err);
        if (status != MAR_OK) return MAR_KIND_UNKNOWN;
        int side = 0;
        while (side * side < model.seq_len) side++;
        if (side * side != model.seq_len || model.heads < 1 || model.width % model.heads || model.decoder_heads < 1 ||
            model.width % model.decoder_heads || model.buffer < 1)
            fuzz_fail("a model of %d tokens, %d and %d heads, width %d, %d buffer tokens", model.seq_len, model.heads,
                      model.decoder_heads, model.width, model.buffer);
        if (model.patch_size < 0 || (model.patch_size && model.token_dim % (model.patch_size * model.patch_size)))
            fuzz_fail("patches of %d for tokens of %d channels", model.patch_size, model.token_dim);
        family_mar_tensors(&model, visit, v);
        if (v->parameters != model.parameters) fuzz_fail("%ld parameters of %ld", v->parameters, model.parameters);
        return MAR_KIND_MAR;
    }
    if (family_spherear.recognise(f)) return derive_spherear(f, heads, v);
    if (family_llamagen.recognise(f)) return derive_llamagen(f, heads, v);
    if (eagle_config_recognise(f)) return derive_eagle(f, heads, v);
    const wt_kind *kind = mar_kind_of(f);
    if (kind && kind->kind == MAR_KIND_T5) return derive_t5(f, v);
    if ((kind && kind->instead) || !vae_config_recognise(f)) return MAR_KIND_UNKNOWN;
    const mar_status status = vae_config_derive(f, &vae, &err);
    fuzz_check_error("vae_config_derive", status, &err);
    if (status != MAR_OK) return MAR_KIND_UNKNOWN;
    vae_config_tensors(f, &vae, visit, v);
    if (v->parameters != vae.parameters) fuzz_fail("%ld parameters of %ld", v->parameters, vae.parameters);
    return MAR_KIND_VAE;
}

static void check_lines(const mar_report *r)
{
    for (int i = 0; i < mar_report_fact_count(r); i++) fuzz_check_line("a fact", mar_report_fact(r, i));
    for (int i = 0; i < mar_report_problem_count(r); i++) fuzz_check_line("a problem", mar_report_problem(r, i));
}

/* Returns whether t has integers that no model needs, and its kind has not counted it by its name. */
static int is_spare(const wt_file *f, const wt_tensor *t)
{
    const wt_kind *kind = mar_kind_of(f);
    const int named = kind && ((kind->is_int8 && kind->is_int8(t->name)) || (kind->ignores && kind->ignores(t->name)) ||
                               (kind->repeats && kind->repeats(f, t->name)));
    return kind && !wt_is_float(t->dtype) && !named;
}

static void check_failure(const char *what, mar_status status)
{
    mar_err err = {0};
    snprintf(err.text, sizeof err.text, "%s", mar_error(handle));
    if (status == MAR_EARG)
        fuzz_check_line(what, err.text);
    else
        fuzz_check_error(what, status, &err);
}

/* Checks that the report agrees with the tensors. A report takes longer than everything else, so one input in eight
 * gets one. */
static void check_report(const wt_file *f, int heads, int with_report)
{
    mar_report *r = NULL;
    tally v;
    const mar_kind kind = derive(f, heads, &v);
    if (!with_report) return;
    const mar_status status = mar_inspect(handle, "input", heads, &r);
    if ((status == MAR_OK) != (r != NULL)) fuzz_fail("mar_inspect: a report and a failure");
    if (status != MAR_OK) {
        check_failure("mar_inspect", status);
        return;
    }
    check_lines(r);
    if (mar_report_kind(r) != kind)
        fuzz_fail("the report's kind is %d, expected %d", (int)mar_report_kind(r), (int)kind);
    const int is_model = kind != MAR_KIND_UNKNOWN && 1u << kind & WT_KINDS_OF_MODELS;
    if ((mar_report_model(r) != NULL) != is_model || (mar_report_vae(r) != NULL) != (kind == MAR_KIND_VAE))
        fuzz_fail("the report has no shape of its kind %d", (int)kind);
    if (kind == MAR_KIND_VAE && wt_find(f, "quantize.codebook_used")) v.ignored = 1;
    const int is_detok = kind == MAR_KIND_VAE && vae_config_is_detok(f);
    for (int i = 0; i < wt_count(f); i++)
        v.ignored += strncmp(wt_at(f, i)->name, "loss.", 5) == 0 ||
                     (is_detok && vae_config_ignores_detok(wt_at(f, i)->name)) || is_spare(f, wt_at(f, i));
    const int whole = kind != MAR_KIND_UNKNOWN && v.found == v.count && wt_count(f) == v.count + v.ignored;
    if (mar_report_problem_count(r) == 0 && !whole)
        fuzz_fail("no problem, with %d of %d tensors among %d", v.found, v.count, wt_count(f));
    if (whole && mar_report_problem_count(r) > v.count) fuzz_fail("more problems than tensors");
    mar_report_free(r);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const mar_options options = {.size = sizeof options, .backend = MAR_BACKEND_CPU, .threads = 1};
    (void)argc, (void)argv;
    cJSON_InitHooks(&(cJSON_Hooks){arena_take, arena_give_back});
    if (mar_open(&options, &handle) != MAR_OK) fuzz_fail("mar_open: %s", mar_error(handle));
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, data + size};
    const uint8_t base = take(&in), heads = take(&in);
    const wt_dtype dtype = base & 8 ? WT_BF16 : WT_F32;
    uint8_t fill = 0;
    wt_file *f = NULL;
    mar_err err = {0};
    n_entries = n_pairs = 0;
    arena.used = 0;
    if (base & 1) start_small_model(dtype);
    if (base & 2) start_autoencoder(dtype);
    if ((base & 0xf4) == 0xf4) start_model(dtype);
    if ((base & 0xf4) == 0x24) start_vq(dtype);
    if ((base & 0xf4) == 0x44 || (base & 0xf4) == 0x54) start_llamagen(dtype, base & 0x10);
    if ((base & 0xf4) == 0x64) start_eagle(dtype);
    if ((base & 0xf4) == 0x74) start_spherear(dtype);
    if ((base & 0xf4) == 0x84) start_vit(dtype);
    if ((base & 0xf4) == 0x94) start_t5(dtype);
    if ((base & 0xf4) == 0xa4) start_detok(dtype);
    while (in.at < in.end) change(&in, &fill);
    make_file(fill);
    const mar_status status = wt_open_memory(file.data, file.size, "input", &f, &err);
    fuzz_check_error("wt_open_memory", status, &err);
    if (status != MAR_OK) return 0;
    file.opened = f;
    uint32_t h = 2166136261u; /* FNV-1a: depends on the input alone */
    for (size_t i = 0; i < size; i++) h = (h ^ data[i]) * 16777619u;
    check_report(f, heads < 0x80 ? 0 : (int8_t)(heads << 1) / 2, (h ^ h >> 15) % 8 == 0);
    file.opened = NULL;
    __real_wt_close(f);
    return 0;
}
