/* Safetensors files. The mutator changes the header as JSON, and sets the header's length. It lays the tensors out
 * again, so that they cover the data. */
#include "tests/fuzz/fuzz.h"

#include "weights/number.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_check_checkpoint(data, size);
    return 0;
}

/* --- the mutator ------------------------------------------------------------------------------------------- */

static const char *const dtypes[] = {"F64", "F32",  "F16",     "BF16",    "I64", "I32", "I16", "I8",
                                     "U8",  "BOOL", "F8_E4M3", "F8_E5M2", "C64", "f32", ""};
static const char *const names[] = {"a",
                                    "b",
                                    "class_emb.weight",
                                    "__metadata__",
                                    "encoder_blocks.0.norm1.weight",
                                    "dtype",
                                    "",
                                    "data_offsets",
                                    "tab\tquote\"",
                                    "\xc3\xa4\xe2\x82\xac",
                                    "\xff",
                                    "longer.than.sixteen.bytes.and.of.no.use.at.all"};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, NAMES = sizeof names / sizeof *names, DATA_MAX = 2048 };

static cJSON *random_shape(fuzz_random *r)
{
    cJSON *shape = cJSON_CreateArray();
    for (uint32_t n = fuzz_one_in(r, 16) ? fuzz_next(r, 11) : fuzz_next(r, 4); n > 0; n--)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber(fuzz_one_in(r, 16) ? (double)fuzz_number(r) : fuzz_next(r, 6)));
    return shape;
}

static cJSON *random_tensor(fuzz_random *r)
{
    cJSON *t = cJSON_CreateObject();
    cJSON_AddStringToObject(t, "dtype", dtypes[fuzz_next(r, fuzz_one_in(r, 16) ? DTYPES : 10)]);
    cJSON_AddItemToObject(t, "shape", random_shape(r));
    cJSON_AddItemToObject(t, "data_offsets", cJSON_CreateIntArray((int[]){0, 0}, 2));
    return t;
}

/* Sets a member, whether or not the object has it. */
static void set_member(cJSON *object, const char *key, cJSON *item)
{
    if (cJSON_GetObjectItemCaseSensitive(object, key))
        cJSON_ReplaceItemInObjectCaseSensitive(object, key, item);
    else
        cJSON_AddItemToObject(object, key, item);
}

static cJSON *random_value(fuzz_random *r)
{
    switch (fuzz_next(r, 8)) {
    case 0:
        return cJSON_CreateNull();
    case 1:
        return cJSON_CreateTrue();
    case 2:
        return cJSON_CreateNumber((double)fuzz_number(r));
    case 3:
        return cJSON_CreateNumber(-0.5);
    case 4:
        return cJSON_CreateString(names[fuzz_next(r, NAMES)]);
    case 5:
        return cJSON_CreateArray();
    case 6:
        return random_shape(r);
    default:
        return random_tensor(r);
    }
}

/* Returns an item below `parent`, which must not be empty: mostly one of its own. */
static cJSON *any_item(cJSON *parent, fuzz_random *r, cJSON **owner)
{
    cJSON *item = NULL;
    for (;;) {
        const int n = cJSON_GetArraySize(parent);
        if (n == 0) return item;
        *owner = parent;
        item = cJSON_GetArrayItem(parent, (int)fuzz_next(r, (uint32_t)n));
        if (!item->child || fuzz_one_in(r, 2)) return item;
        parent = item;
    }
}

static void rename_item(cJSON *item, fuzz_random *r)
{
    char text[64];
    size_t n = item->string ? strlen(item->string) : 0;
    if (!item->string) return;
    if (n >= sizeof text || fuzz_one_in(r, 2)) {
        strcpy(text, names[fuzz_next(r, NAMES)]);
    } else {
        memcpy(text, item->string, n);
        text[LLVMFuzzerMutate((uint8_t *)text, n, sizeof text - 1)] = '\0';
    }
    cJSON_free(item->string);
    item->string = cJSON_malloc(strlen(text) + 1);
    strcpy(item->string, text);
}

static void mutate_metadata(cJSON *root, fuzz_random *r)
{
    cJSON *pairs = cJSON_GetObjectItemCaseSensitive(root, "__metadata__");
    if (!pairs) pairs = cJSON_AddObjectToObject(root, "__metadata__");
    if (!cJSON_IsObject(pairs)) return;
    cJSON_AddItemToObject(pairs, names[fuzz_next(r, NAMES)],
                          fuzz_one_in(r, 8) ? random_value(r) : cJSON_CreateString(names[fuzz_next(r, NAMES)]));
}

static void mutate_header(cJSON *root, fuzz_random *r)
{
    cJSON *owner = NULL, *item = any_item(root, r, &owner), *tensor = NULL;
    const int n = cJSON_GetArraySize(root);
    if (n > 0) tensor = cJSON_GetArrayItem(root, (int)fuzz_next(r, (uint32_t)n));
    switch (item ? fuzz_next(r, 10) : 0) {
    case 0:
        cJSON_AddItemToObject(root, names[fuzz_next(r, NAMES)], random_tensor(r));
        break;
    case 1:
        cJSON_Delete(cJSON_DetachItemViaPointer(owner, item));
        break;
    case 2:
        rename_item(item, r);
        break;
    case 3:
        set_member(tensor, "dtype", cJSON_CreateString(dtypes[fuzz_next(r, DTYPES)]));
        break;
    case 4:
        set_member(tensor, "shape", random_shape(r));
        break;
    case 5:
        mutate_metadata(root, r);
        break;
    case 6: /* repeated, under the same name or another */
        cJSON_AddItemToObject(owner, item->string ? item->string : "", cJSON_Duplicate(item, 1));
        if (!fuzz_one_in(r, 4)) rename_item(owner->child->prev, r);
        break;
    case 7:
        cJSON_ReplaceItemViaPointer(owner, item, random_value(r));
        break;
    case 8: /* last becomes first */
        cJSON_InsertItemInArray(owner, 0, cJSON_DetachItemViaPointer(owner, owner->child->prev));
        break;
    default:
        cJSON_AddItemToObject(tensor, names[fuzz_next(r, NAMES)], random_value(r));
    }
}

/* Returns a tensor's bytes; DATA_MAX + 1 if there are more or the number is unknown. */
static size_t tensor_bytes(const cJSON *tensor)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(tensor, "dtype"),
                *shape = cJSON_GetObjectItemCaseSensitive(tensor, "shape");
    double bytes = 1;
    if (!cJSON_IsString(dtype) || !cJSON_IsArray(shape)) return DATA_MAX + 1;
    for (int d = WT_F64; d <= WT_F8_E5M2; d++)
        if (strcmp(dtype->valuestring, wt_dtype_name((wt_dtype)d)) == 0) bytes = (double)wt_dtype_size((wt_dtype)d);
    for (const cJSON *item = shape->child; item; item = item->next) bytes *= item->valuedouble;
    return bytes >= 0 && bytes <= DATA_MAX ? (size_t)bytes : DATA_MAX + 1;
}

/* Sets every tensor's data_offsets, one after another. Returns the bytes of the data. */
static size_t lay_out(cJSON *root)
{
    size_t at = 0;
    for (cJSON *tensor = root->child; tensor; tensor = tensor->next) {
        const size_t bytes = tensor_bytes(tensor);
        if (bytes > DATA_MAX - at) continue;
        set_member(tensor, "data_offsets", cJSON_CreateIntArray((int[]){(int)at, (int)(at + bytes)}, 2));
        at += bytes;
    }
    return at;
}

/* Writes the header's text as the file will have it, changed as text once in a while. Returns its length. */
static size_t header_text(const cJSON *root, fuzz_random *r, char *text, size_t size)
{
    if (!cJSON_PrintPreallocated((cJSON *)(uintptr_t)root, text, (int)size, 0)) return 0;
    size_t n = strlen(text);
    if (fuzz_one_in(r, 8)) n = LLVMFuzzerMutate((uint8_t *)text, n, size);
    for (uint32_t spaces = fuzz_one_in(r, 4) ? fuzz_next(r, 9) : 0; spaces > 0 && n < size; spaces--) text[n++] = ' ';
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    static char text[16 * 1024];
    static uint8_t values[DATA_MAX];
    fuzz_random r = {seed};
    fuzz_next(&r, 1);
    if (fuzz_plain_wanted(&r)) return LLVMFuzzerMutate(data, size, max_size);
    const uint64_t length = size >= 8 ? wt_le64(data) : 0;
    cJSON *root = size >= 8 && length <= size - 8 ? cJSON_ParseWithLength((char *)data + 8, length) : NULL;
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        root = cJSON_CreateObject();
        cJSON_AddItemToObject(root, "a", random_tensor(&r));
    }
    size_t n_values = 0;
    if (size >= 8 && length <= size - 8) {
        n_values = size - 8 - length < DATA_MAX ? size - 8 - length : DATA_MAX;
        memcpy(values, data + 8 + length, n_values);
    }
    for (uint32_t n = 1 + fuzz_next(&r, 3); n > 0; n--) mutate_header(root, &r);
    if (fuzz_one_in(&r, 4) && n_values > 0) LLVMFuzzerMutate(values, n_values, n_values);
    if (!fuzz_one_in(&r, 12)) {
        const size_t wanted = lay_out(root);
        for (; n_values < wanted; n_values++) values[n_values] = (uint8_t)n_values;
        n_values = wanted;
    }
    const size_t n = header_text(root, &r, text, sizeof text);
    cJSON_Delete(root);
    fuzz_bytes out = {.data = data, .capacity = max_size};
    fuzz_le(&out, fuzz_one_in(&r, 64) ? fuzz_number(&r) : n, 8);
    fuzz_put(&out, text, n);
    fuzz_put(&out, values, n_values);
    return n > 0 && !out.full ? out.size : LLVMFuzzerMutate(data, out.size, max_size);
}
