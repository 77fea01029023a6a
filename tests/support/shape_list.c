#include "tests/support/shape_list.h"
#include "tests/support/archive.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

cJSON *read_list(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tests/weights/data/formats/%s.json", name);
    bytes b = bytes_from_file(path);
    cJSON *list = cJSON_ParseWithLength((char *)b.data, b.size);
    assert_non_null(list);
    bytes_free(&b);
    return list;
}

void set_shape(cJSON *list, const char *name, int rank, const double *shape)
{
    cJSON *array = cJSON_CreateDoubleArray(shape, rank);
    if (cJSON_HasObjectItem(list, name))
        cJSON_ReplaceItemInObjectCaseSensitive(list, name, array);
    else
        cJSON_AddItemToObject(list, name, array);
}
wt_file *open_list_with(const cJSON *list, const char *key, const char *value)
{
    char *dir = test_directory(), path[600];
    cJSON *root = cJSON_CreateObject();
    double offset = 0;
    if (value) cJSON_AddStringToObject(cJSON_AddObjectToObject(root, "__metadata__"), key, value);
    for (const cJSON *item = list->child; item; item = item->next) {
        cJSON *entry = cJSON_AddObjectToObject(root, item->string), *dim;
        double offsets[2] = {offset, offset + 4};
        cJSON_ArrayForEach(dim, item) offsets[1] = offset + (offsets[1] - offset) * dim->valuedouble;
        cJSON_AddStringToObject(entry, "dtype", "F32");
        cJSON_AddItemToObject(entry, "shape", cJSON_Duplicate(item, 1));
        cJSON_AddItemToObject(entry, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
        offset = offsets[1];
    }
    char *text = cJSON_PrintUnformatted(root);
    bytes b = make_safetensors(text, 0);
    wt_file *f = NULL;
    mar_err err = {0};
    snprintf(path, sizeof path, "%s/model", dir);
    FILE *file = fopen(path, "wb");
    fwrite(b.data, 1, b.size, file);
    fclose(file);
    assert_int_equal(truncate(path, (off_t)b.size + (off_t)offset), 0);
    assert_ok(wt_open(path, &f, &err), &err);
    bytes_free(&b);
    cJSON_free(text);
    cJSON_Delete(root);
    return f;
}

wt_file *open_list(const cJSON *list, const char *heads)
{
    return open_list_with(list, "mar.heads", heads);
}

void compare_visit(void *user, const char *name, int rank, const int64_t *shape)
{
    comparison *c = user;
    if (!c->next) fail_msg("%s is not in the list", name);
    if (strcmp(name, c->next->string) != 0) fail_msg("tensor %d is %s, expected %s", c->visits, name, c->next->string);
    assert_int_equal(rank, cJSON_GetArraySize(c->next));
    for (int i = 0; i < rank; i++) assert_int_equal(shape[i], (int64_t)cJSON_GetArrayItem(c->next, i)->valuedouble);
    c->next = c->next->next;
    c->visits++;
}
