/* The directory of a zip file in memory, ZIP64 included. It reads what PyTorch writes: entries stored uncompressed, in
 * one part. */
#ifndef WEIGHTS_ZIP_H
#define WEIGHTS_ZIP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name; /* [name_length] in the file, no NUL */
    size_t name_length;
    uint64_t header; /* offset of the local header */
    uint64_t size;   /* bytes of the contents */
    uint64_t packed; /* bytes as stored in the file */
    uint16_t method, flags;
} zip_entry;

typedef struct {
    const char *path; /* for messages */
    const uint8_t *data;
    uint64_t size;
    zip_entry *entries; /* [count], sorted by name */
    size_t count;
} zip_directory;

/* Reads the directory. Names of entries point into `data`. Contents are checked by zip_contents, not here. */
mar_status zip_open(const char *path, const uint8_t *data, uint64_t size, zip_directory *out, mar_err *err);
void zip_close(zip_directory *zip);

const zip_entry *zip_find(const zip_directory *zip, const char *name, size_t name_length); /* NULL if absent */
/* *out = the entry's bytes, inside zip->data. MAR_EFORMAT for compressed and encrypted entries. */
mar_status zip_contents(const zip_directory *zip, const zip_entry *entry, const uint8_t **out, mar_err *err);

#endif
