/* The directory of a zip file, ZIP64 included. It reads what PyTorch and NumPy write: files in one part, entries stored
 * or deflated. */
#ifndef WEIGHTS_ZIP_H
#define WEIGHTS_ZIP_H

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name; /* [name_length] in the directory, no NUL at its end */
    size_t name_length;
    uint64_t header; /* offset of the local header */
    uint64_t size;   /* bytes of the contents */
    uint64_t packed; /* bytes as stored in the file */
    uint32_t crc;    /* CRC-32 of the contents; PyTorch's may be wrong */
    uint16_t method; /* how they are stored: zip_method */
    uint16_t flags;
} zip_entry;

typedef enum { ZIP_STORED = 0, ZIP_DEFLATED = 8 } zip_method;

typedef struct {
    const file_source *source;
    uint8_t *bytes;     /* the directory as it is in the file */
    zip_entry *entries; /* [count], sorted by name */
    size_t count;
} zip_directory;

/* Reads the directory, of 16 MB at most, into memory. Contents are checked by zip_contents, not here. `source` must
 * stay open. */
mar_status zip_open(const file_source *source, zip_directory *out, mar_err *err);
void zip_close(zip_directory *zip);

const zip_entry *zip_find(const zip_directory *zip, const char *name, size_t name_length); /* NULL if absent */
/* *offset = where the entry's bytes, entry->packed of them, begin in the file, however they are stored. */
mar_status zip_locate(const zip_directory *zip, const zip_entry *entry, uint64_t *offset, mar_err *err);
/* The same of an entry that is neither compressed nor encrypted; MAR_EFORMAT for others. */
mar_status zip_contents(const zip_directory *zip, const zip_entry *entry, uint64_t *offset, mar_err *err);
int zip_is_encrypted(const zip_entry *entry);

#endif
