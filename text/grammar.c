#include "text/grammar.h"

#include "text/tokenizer.h"
#include "weights/shape.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODEBOOK_MAX = 1 << 18, PUT_MAX = 24 /* bytes of a number in the metadata */ };

/* The prompts of Lumina-mGPT (generate_examples/generate.py, data/item_processor.py), of Anole (text2image.py;
 * LANTERN's ea_model_anole.py), and of Emu3 (image_generation.py, mllm/processing_emu3.py). */
static const text_family families[] = {
    {.name = "lumina-mgpt",
     .title = "Lumina-mGPT",
     .prompt = "{<s>}Generate an image of {W}x{H} according to the following prompt:\n{prompt}<reserved08706>"
               "{<racm3:break>}{size_h}{size_w}",
     .negative = "{<racm3:break>}{size_h}{size_w}",
     .line_end = "<reserved08799>",
     .stride = 16,
     .unit = 32,
     .ratio = 4,
     .trained = {512, 768, 1024},
     .width = 768,
     .height = 768,
     .size_token = 8800,
     .context = 4096},
    {.name = "anole",
     .title = "Anole",
     .prompt = "{<s>}{prompt}{<reserved08706>}{<racm3:break>}",
     .negative = "{<s>}{<racm3:break>}",
     .stride = 16,
     .unit = 512,
     .width = 512,
     .height = 512,
     .fixed_size = 1,
     .context = 4096},
    {.name = "emu3",
     .title = "Emu3",
     .prompt = "<|extra_203|>{prompt} masterpiece, film grained, best quality.<|image start|>{rows}*{columns}"
               "<|image token|>",
     .negative = "<|extra_203|>{prompt}<|image start|>{rows}*{columns}<|image token|>",
     .negative_prompt = "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
                        "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
                        "username, blurry.",
     .line_end = "<|extra_200|>",
     .stride = 8,
     .unit = 8,
     .width = 720,
     .height = 720,
     .context = 9216},
    {.name = "demo-mgpt", /* demo/train_mgpt.py; its file names this family */
     .title = "demo-mgpt",
     .prompt = "{<s>}{prompt}{<reserved08706>}{<racm3:break>}{size_h}{size_w}",
     .negative = "{<racm3:break>}{size_h}{size_w}",
     .line_end = "<reserved08799>",
     .stride = 8,
     .unit = 32,
     .ratio = 3,
     .width = 96,
     .height = 64,
     .size_token = 8800,
     .context = 256},
};
enum { FAMILIES = sizeof families / sizeof *families };

static const text_family *find_family(const char *name)
{
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0) return &families[i];
    return NULL;
}

/* --- configuration ------------------------------------------------------------------------------------------------ */

/* Returns a member of the configuration, or of the part about the text model; NULL if there is none. */
static const json_value *member(const wt_file *f, const char *key)
{
    const json_value *root = wt_config(f), *v = root ? json_member(root, key) : NULL;
    const json_value *part = root ? json_member(root, "text_config") : NULL;
    return v || !part ? v : json_member(part, key);
}

/* Reads a whole number from `least` on. Leaves *out unchanged if the configuration has none. */
static mar_status read_number(const wt_file *f, const char *key, int least, int *out, mar_err *err)
{
    const json_value *v = member(f, key);
    int64_t number;
    if (!v || v->type == JSON_NULL) return MAR_OK;
    if (!json_integer(v, &number) || number < least || number > INT_MAX / 2)
        return err_set(err, MAR_EMODEL, "%s: its configuration has no whole number from %d on for %s", wt_path(f),
                       least, key);
    *out = (int)number;
    return MAR_OK;
}

/* Returns whether the configuration is that of Meta's release, params.json. */
static int is_release(const wt_file *f)
{
    const json_value *model = member(f, "model");
    return model && json_member(model, "n_layers");
}

/* Returns whether the configuration has a key that only Lumina's fine-tuning writes. */
static int is_fine_tuned(const wt_file *f)
{
    static const char *const keys[] = {"dropout", "mask_image_logits", "z_loss_weight"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (member(f, keys[i])) return 1;
    return 0;
}

/* Returns the family that a name of an architecture or model type stands for; NULL if it stands for none. */
static const text_family *family_of_name(const wt_file *f, const char *name)
{
    static const char *const chameleon[] = {"ChameleonForConditionalGeneration", "ChameleonForCausalLM", "chameleon"};
    static const char *const emu3[] = {"Emu3ForCausalLM", "Emu3ForConditionalGeneration", "Emu3", "emu3"};
    if (strncmp(name, "ChameleonXLLMX", 14) == 0) return find_family("lumina-mgpt");
    for (size_t i = 0; i < sizeof chameleon / sizeof *chameleon; i++)
        if (strcmp(name, chameleon[i]) == 0) return find_family(is_fine_tuned(f) ? "lumina-mgpt" : "anole");
    for (size_t i = 0; i < sizeof emu3 / sizeof *emu3; i++)
        if (strcmp(name, emu3[i]) == 0) return find_family("emu3");
    return NULL;
}

/* Returns the family of a file; NULL if it has none. *name gets the name that the file gives, or NULL. */
static const text_family *family_of(const wt_file *f, const char **name)
{
    *name = wt_metadata(f, "mar.family");
    if (*name) return find_family(*name);
    *name = wt_config_architecture(f);
    if (*name) return family_of_name(f, *name);
    return is_release(f) ? find_family("anole") : NULL;
}

int text_grammar_recognise(const wt_file *f)
{
    const char *name;
    return family_of(f, &name) != NULL;
}

const wt_tensor *text_grammar_embedding(const wt_file *f)
{
    const wt_tensor *t = wt_find(f, "model.embed_tokens.weight");
    return t ? t : wt_find(f, "tok_embeddings.weight");
}

mar_status text_grammar_rename(wt_file *f, mar_err *err)
{
    static const wt_naming names[] = {{"text_model.model.", "model.", 0}, /* as its files have them */
                                      {"text_model.lm_head.", "lm_head.", 0},
                                      {"model.text_model.", "model.", 0}}; /* in transformers 5's state dict */
    if (!wt_find(f, "text_model.model.embed_tokens.weight") && !wt_find(f, "model.text_model.embed_tokens.weight"))
        return MAR_OK;
    return wt_rename(f, names, sizeof names / sizeof *names, err);
}

/* --- ids ---------------------------------------------------------------------------------------------------------- */

/* The ids while they are found. */
typedef struct {
    const wt_file *f;
    text_grammar *g;
    int *ids;             /* [room] by number, -1: not found */
    int room, count, end; /* ids found; one more than the largest number */
    uint8_t *seen;        /* [vocabulary] 1: an image token has this id */
    mar_err *err;
} finding;

static mar_status refuse_memory(const wt_file *f, mar_err *err)
{
    return err_set(err, MAR_ENOMEM, "%s: out of memory for its vocabulary", wt_path(f));
}

/* Makes room for a number below CODEBOOK_MAX. */
static int make_room(finding *n, int number)
{
    int room = n->room ? n->room : 1024;
    while (room <= number) room *= 2;
    if (room == n->room) return 1;
    int *grown = realloc(n->ids, (size_t)room * sizeof *grown);
    if (!grown) return 0;
    for (int i = n->room; i < room; i++) grown[i] = -1;
    n->ids = grown;
    n->room = room;
    return 1;
}

/* Adds the id of an image token. */
static mar_status add_id(finding *n, int64_t number, int64_t id)
{
    const char *path = wt_path(n->f);
    if (number < 0 || number >= CODEBOOK_MAX)
        return err_set(n->err, MAR_EMODEL, "%s: image token %lld, expected a number below %d", path, (long long)number,
                       CODEBOOK_MAX);
    if (id < 0 || id >= n->g->vocabulary)
        return err_set(n->err, MAR_EMODEL, "%s: image token %lld has id %lld, expected one of the embedding's %d rows",
                       path, (long long)number, (long long)id, n->g->vocabulary);
    if (!make_room(n, (int)number)) return refuse_memory(n->f, n->err);
    if (n->ids[number] >= 0 || n->seen[id])
        return err_set(n->err, MAR_EMODEL, "%s: image token %lld or id %lld is there twice", path, (long long)number,
                       (long long)id);
    n->ids[number] = (int)id;
    n->seen[id] = 1;
    n->count++;
    if (number >= n->end) n->end = (int)number + 1;
    return MAR_OK;
}

/* Returns the codebook number in the name of an image token, or -1 for another name. Chameleon's are "IMGIMG", the
 * digits as letters A to J, and "Z" (inference/vocab.py); Emu3's "<|visual token 000012|>". */
static int64_t number_of(const char *name)
{
    static const char chameleon[] = "IMGIMG", emu3[] = "<|visual token ";
    const int letters = strncmp(name, chameleon, sizeof chameleon - 1) == 0;
    if (!letters && strncmp(name, emu3, sizeof emu3 - 1) != 0) return -1;
    const char *at = name + (letters ? sizeof chameleon : sizeof emu3) - 1, *digits = at, zero = letters ? 'A' : '0';
    int64_t number = 0;
    for (; *at >= zero && *at < zero + 10 && number < CODEBOOK_MAX; at++) number = 10 * number + (*at - zero);
    return at > digits && strcmp(at, letters ? "Z" : "|>") == 0 ? number : -1;
}

/* Finds the image tokens in a map of names to ids. */
static mar_status find_in_map(finding *n, const json_value *map)
{
    mar_status status = MAR_OK;
    for (const json_value *name = map + 1; name < json_next(map) && status == MAR_OK; name = json_next(name + 1)) {
        const int64_t number = number_of(name->text);
        int64_t id = -1;
        if (number < 0) continue;
        status = json_integer(name + 1, &id)
                     ? add_id(n, number, id)
                     : err_set(n->err, MAR_EMODEL, "%s: the id of %s is no whole number", wt_path(n->f), name->text);
    }
    return status;
}

/* Finds Chameleon's in the tokenizer: numbers from 0 on, up to the first that it does not have. */
static mar_status find_in_tokenizer(finding *n, const text_tokenizer *t)
{
    mar_status status = MAR_OK;
    for (int number = 0; number < CODEBOOK_MAX && status == MAR_OK; number++) {
        char digits[16], name[32] = "IMGIMG";
        const int length = snprintf(digits, sizeof digits, "%d", number);
        for (int i = 0; i < length; i++) name[6 + i] = (char)(digits[i] - '0' + 'A');
        name[6 + length] = 'Z';
        const int id = text_tokenizer_find(t, name);
        if (id < 0) break;
        status = add_id(n, number, id);
    }
    return status;
}

/* Finds Emu3's behind the end of an image (mllm/configuration_emu3.py). The embedding may be padded behind them. */
static mar_status find_behind(finding *n)
{
    enum { VISUAL_TOKENS = 32768 };
    const int rows = n->g->vocabulary;
    int before = 151853, end = rows;
    mar_status status = read_number(n->f, "eoi_token_id", 0, &before, n->err);
    if (status == MAR_OK) status = read_number(n->f, "vocab_size", 1, &end, n->err);
    if (status == MAR_OK && end > rows)
        status = err_set(n->err, MAR_EMODEL, "%s: its configuration has a vocabulary of %d, its embedding %d rows",
                         wt_path(n->f), end, rows);
    if (end > before + 1 + VISUAL_TOKENS) end = before + 1 + VISUAL_TOKENS;
    for (int id = before + 1; id < end && status == MAR_OK; id++) status = add_id(n, id - before - 1, id);
    return status;
}

/* Reads ids from text as text_grammar_put writes it: "4-8195" or "7,5,9-12", in the order of the codebook. */
static mar_status find_in_text(finding *n, const char *text)
{
    mar_status status = MAR_OK;
    while (*text && status == MAR_OK) {
        char *end;
        const long first = strtol(text, &end, 10);
        const long last = *end == '-' ? strtol(text = end + 1, &end, 10) : first;
        if (end == text || (*end && (*end != ',' || !end[1])) || first < 0 || last < first || last >= n->g->vocabulary)
            return err_set(n->err, MAR_EMODEL, "%s: metadata mar.image_tokens is no list of ids below %d",
                           wt_path(n->f), n->g->vocabulary);
        for (long id = first; id <= last && status == MAR_OK; id++) status = add_id(n, n->end, id);
        text = *end ? end + 1 : end;
    }
    return status;
}

/* Reads the id of the line end from the metadata, the configuration, the map or the tokenizer, whichever has it. */
static mar_status find_line_end(finding *n, const json_value *map, const text_tokenizer *t)
{
    text_grammar *g = n->g;
    const char *text = wt_metadata(n->f, "mar.line_end"), *name = g->family->line_end;
    const json_value *v = map && name ? json_member(map, name) : NULL;
    int64_t id = -1;
    if (!name) return MAR_OK;
    char *end;
    if (text) {
        id = strtol(text, &end, 10);
        if (end == text || *end) id = -1;
    } else if (v)
        id = json_integer(v, &id) ? id : -1;
    else if (t)
        id = text_tokenizer_find(t, name);
    else
        id = strcmp(g->family->name, "emu3") == 0 ? 151846 : -1;
    g->line_end = id >= 0 && id < g->vocabulary ? (int)id : -1;
    const mar_status status = read_number(n->f, "eol_token_id", 0, &g->line_end, n->err);
    if (status != MAR_OK) return status;
    if (g->line_end < 0 || g->line_end >= g->vocabulary || n->seen[g->line_end])
        return err_set(n->err, MAR_EMODEL, "%s: the vocabulary has no line end %s", wt_path(n->f), name);
    return MAR_OK;
}

/* Finds the ids where they are. */
static mar_status find_ids(finding *n)
{
    const json_value *map = member(n->f, "vocabulary_map");
    const char *text = wt_metadata(n->f, "mar.image_tokens");
    text_tokenizer *t = NULL;
    mar_status status;
    if (map && map->type != JSON_OBJECT) map = NULL;
    if (text) {
        status = find_in_text(n, text);
    } else if (map) {
        status = find_in_map(n, map);
    } else if (strcmp(n->g->family->name, "emu3") == 0) {
        status = find_behind(n);
    } else {
        status = text_tokenizer_open(wt_path(n->f), &t, n->err);
        if (status == MAR_OK) status = find_in_tokenizer(n, t);
    }
    if (status == MAR_OK && (n->count == 0 || n->count != n->end))
        status = err_set(n->err, MAR_EMODEL,
                         n->count == 0 ? "%s: the vocabulary has no image tokens"
                                       : "%s: the vocabulary lacks some of its image tokens",
                         wt_path(n->f));
    if (status == MAR_OK) status = find_line_end(n, map, t);
    text_tokenizer_free(t);
    return status;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Reads a number of one to five digits. Returns what follows it; NULL if there is none. */
static const char *read_side(const char *text, int *out)
{
    const char *at = text;
    for (*out = 0; *at >= '0' && *at <= '9' && at < text + 5; at++) *out = 10 * *out + (*at - '0');
    return at > text && *out > 0 && *out <= TEXT_SIDE_MAX ? at : NULL;
}

int text_read_size(const char *text, int *width, int *height)
{
    int w, h;
    const char *at = read_side(text, &w);
    if (!at || *at != 'x' || !(at = read_side(at + 1, &h)) || *at) return 0;
    *width = w;
    *height = h;
    return 1;
}

/* Reads the context and the default size. */
static mar_status read_sizes(const wt_file *f, text_grammar *g, mar_err *err)
{
    const char *size = wt_metadata(f, "mar.image_size");
    long context = g->family->context;
    int area = 0;
    g->width = g->family->width;
    g->height = g->family->height;
    mar_status status = wt_metadata_number(f, "mar.context", &context, err);
    g->context = context > INT_MAX ? INT_MAX : (int)context;
    if (status == MAR_OK) status = read_number(f, "max_position_embeddings", 1, &g->context, err);
    if (status == MAR_OK) status = read_number(f, "image_area", 1, &area, err);
    if (status != MAR_OK) return status;
    if (g->context > 1 << 24)
        return err_set(err, MAR_EMODEL, "%s: a context of %d positions, expected at most %d", wt_path(f), g->context,
                       1 << 24);
    if (area) g->width = g->height = (int)lround(sqrt(area) / g->family->stride) * g->family->stride;
    if (g->width < 1 || g->width > TEXT_SIDE_MAX)
        return err_set(err, MAR_EMODEL, "%s: config.json has an image_area of %d, expected sides of at most %d",
                       wt_path(f), area, TEXT_SIDE_MAX);
    if (size && !text_read_size(size, &g->width, &g->height))
        return err_set(err, MAR_EMODEL, "%s: metadata mar.image_size is \"%s\", expected as 512x512", wt_path(f), size);
    return MAR_OK;
}

static mar_status refuse_family(const wt_file *f, const char *name, mar_err *err)
{
    if (!name)
        return err_set(err, MAR_EMODEL,
                       "%s: does not say what it is: expected the folder of Lumina-mGPT, Anole or Emu3 with its "
                       "config.json or params.json, or what mar convert has written",
                       wt_path(f));
    return err_set(err, MAR_EMODEL,
                   "%s: is a %.100s, expected Lumina-mGPT, Anole (ChameleonForConditionalGeneration) or Emu3 "
                   "(Emu3ForCausalLM)",
                   wt_path(f), name);
}

static mar_status open_grammar(const wt_file *f, text_grammar *g, mar_err *err)
{
    const char *name;
    const wt_tensor *t = text_grammar_embedding(f);
    g->family = family_of(f, &name);
    if (!g->family) return refuse_family(f, name, err);
    if (!t) return err_set(err, MAR_EMODEL, "%s: has no embedding model.embed_tokens.weight", wt_path(f));
    mar_status status = wt_find_shape(f, t->name, 2, &t, err);
    if (status != MAR_OK) return status;
    g->vocabulary = (int)t->shape[0];
    g->line_end = -1;
    finding n = {.f = f, .g = g, .seen = calloc((size_t)g->vocabulary, 1), .err = err};
    status = n.seen ? read_sizes(f, g, err) : refuse_memory(f, err);
    if (status == MAR_OK) status = find_ids(&n);
    free(n.seen);
    g->image_id = n.ids;
    g->codebook = n.count;
    return status;
}

mar_status text_grammar_open(const wt_file *f, text_grammar *out, mar_err *err)
{
    *out = (text_grammar){0};
    const mar_status status = open_grammar(f, out, err);
    if (status != MAR_OK) text_grammar_free(out);
    return status;
}

void text_grammar_free(text_grammar *g)
{
    free(g->image_id);
    *g = (text_grammar){0};
}

/* --- sizes -------------------------------------------------------------------------------------------------------- */

static long image_positions(const text_grammar *g, int columns, int rows)
{
    return (long)rows * (columns + (g->line_end >= 0));
}

int text_grammar_left(const text_grammar *g, int columns, int rows)
{
    /* nothing is computed behind the last image token */
    const long left = g->context - image_positions(g, columns, rows) + (g->line_end >= 0);
    return left < 0 ? 0 : (int)left;
}

int text_grammar_room(const text_grammar *g, int columns, int rows)
{
    const int left = text_grammar_left(g, columns, rows);
    return left < TEXT_PROMPT_MAX ? left : TEXT_PROMPT_MAX;
}

mar_status text_grammar_size(const text_grammar *g, const char *path, int width, int height, int *columns, int *rows,
                             mar_err *err)
{
    const text_family *f = g->family;
    if (!width && !height) width = g->width, height = g->height;
    if (f->fixed_size && (width != g->width || height != g->height))
        return err_set(err, MAR_EARG, "%s: an image of %dx%d: %s makes images of %dx%d only", path, width, height,
                       f->title, g->width, g->height);
    if (width < f->unit || height < f->unit || width % f->unit || height % f->unit || width > TEXT_SIDE_MAX ||
        height > TEXT_SIDE_MAX)
        return err_set(err, MAR_EARG, "%s: an image of %dx%d: sides of %s's images are multiples of %d, at most %d",
                       path, width, height, f->title, f->unit, TEXT_SIDE_MAX);
    if (f->ratio && (width > f->ratio * height || height > f->ratio * width))
        return err_set(err, MAR_EARG, "%s: an image of %dx%d: one side of %s's images is at most %d times the other",
                       path, width, height, f->title, f->ratio);
    *columns = width / f->stride;
    *rows = height / f->stride;
    const long positions = image_positions(g, *columns, *rows);
    if (positions + TEXT_PROMPT_MIN > g->context)
        return err_set(
            err, MAR_EARG,
            "%s: an image of %dx%d has %ld tokens: the model's context of %d has to hold %d more for the prompt", path,
            width, height, positions, g->context, TEXT_PROMPT_MIN);
    return MAR_OK;
}

/* Returns the side of the images, as squares, of the release whose images are nearest in area; 0 if there is none. */
static int nearest_release(const text_grammar *g, double area)
{
    double least = HUGE_VAL;
    int nearest = 0;
    for (const int *side = g->family->trained; *side; side++) {
        const int tokens = *side / g->family->stride;
        const double distance = fabs(log((double)*side * *side / area));
        if (distance > least || image_positions(g, tokens, tokens) + TEXT_PROMPT_MIN > g->context) continue;
        least = distance;
        nearest = *side;
    }
    return nearest;
}

void text_grammar_nearest(const text_grammar *g, int columns, int rows, int *width, int *height)
{
    const text_family *f = g->family;
    const double of_width = columns * f->stride, of_height = rows * f->stride;
    const int side = nearest_release(g, of_width * of_height) / f->unit, units = side * side;
    double least = HUGE_VAL;
    *width = columns * f->stride;
    *height = rows * f->stride;
    /* the sizes of generate_crop_size_list (data/item_processor.py of Lumina-mGPT), by the ratio of their sides */
    for (int w = units, h = 1; w > 0; (h + 1) * w <= units ? h++ : w--) {
        const double distance = fabs(log(w * of_height / (h * of_width)));
        if (w > f->ratio * h || h > f->ratio * w || distance >= least) continue;
        least = distance;
        *width = w * f->unit;
        *height = h * f->unit;
    }
}

/* --- metadata ----------------------------------------------------------------------------------------------------- */

/* Writes ids as find_in_text reads them. Returns the end. */
static char *put_ids(const text_grammar *g, char *text)
{
    for (int i = 0, last; i < g->codebook; i = last + 1) {
        for (last = i; last + 1 < g->codebook && g->image_id[last + 1] == g->image_id[last] + 1;) last++;
        text += snprintf(text, PUT_MAX, "%s%d", i ? "," : "", g->image_id[i]);
        if (last > i) text += snprintf(text, PUT_MAX, "-%d", g->image_id[last]);
    }
    return text + 1;
}

static void put_pair(text_grammar_pairs *p, const char *key, const char *value)
{
    p->pairs[p->count][0] = key;
    p->pairs[p->count++][1] = value;
}

mar_status text_grammar_put(const text_grammar *g, text_grammar_pairs *out, mar_err *err)
{
    *out = (text_grammar_pairs){.text = malloc(((size_t)g->codebook + 5) * PUT_MAX)};
    char *at = out->text;
    if (!at) return err_set(err, MAR_ENOMEM, "out of memory for the ids of %d image tokens", g->codebook);
    put_pair(out, "mar.family", g->family->name);
    put_pair(out, "mar.image_tokens", at);
    at = put_ids(g, at);
    put_pair(out, "mar.context", at);
    at += snprintf(at, PUT_MAX, "%d", g->context) + 1;
    put_pair(out, "mar.image_size", at);
    at += snprintf(at, PUT_MAX, "%dx%d", g->width, g->height) + 1;
    if (g->line_end >= 0) put_pair(out, "mar.line_end", at);
    snprintf(at, PUT_MAX, "%d", g->line_end);
    return MAR_OK;
}

void text_grammar_pairs_free(text_grammar_pairs *p)
{
    free(p->text);
    *p = (text_grammar_pairs){0};
}
