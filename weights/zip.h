/* Directory of a zip file, ZIP64 included. Covers files of PyTorch and NumPy: one part, stored or deflated entries. */
#ifndef WEIGHTS_ZIP_H
#define WEIGHTS_ZIP_H

#include "base/file.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name; /* [name_length] in the directory, without NUL */
    size_t name_length;
    uint64_t header; /* offset of its local header */
    uint64_t size;   /* bytes, decompressed */
    uint64_t packed; /* bytes in the file */
    uint32_t crc;    /* CRC-32 of the contents; PyTorch's may be wrong */
    uint16_t method; /* zip_method */
    uint16_t flags;
} zip_entry;

typedef enum { ZIP_STORED = 0, ZIP_DEFLATED = 8 } zip_method;

typedef struct {
    const file_source *source;
    uint8_t *bytes;     /* the directory as stored */
    zip_entry *entries; /* [count], sorted by name */
    size_t count;
} zip_directory;

/* Reads the directory, at most 16 MB. Contents are checked by zip_contents, not here. `source` must stay open. */
mar_status zip_open(const file_source *source, zip_directory *out, mar_err *err);
void zip_close(zip_directory *zip);

const zip_entry *zip_find(const zip_directory *zip, const char *name, size_t name_length); /* NULL if absent */
/* Sets *offset to the position in the file of the entry's entry->packed bytes, compressed or not. Returns MAR_EFORMAT,
 * MAR_EIO. */
mar_status zip_locate(const zip_directory *zip, const zip_entry *entry, uint64_t *offset, mar_err *err);
/* Does the same, but returns MAR_EFORMAT for a compressed or encrypted entry. */
mar_status zip_contents(const zip_directory *zip, const zip_entry *entry, uint64_t *offset, mar_err *err);
int zip_is_encrypted(const zip_entry *entry);

#endif
