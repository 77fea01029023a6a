#include "text/protobuf.h"

#include <string.h>

/* Reads a number of at most ten bytes. Returns 0 if it does not end in the message or has more than 64 bits. */
static int read_varint(proto_message *m, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 70 && m->at < m->end; shift += 7) {
        const uint8_t byte = *m->at++;
        if (shift == 63 && byte > 1) return 0;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return 1;
    }
    return 0;
}

/* Reads `size` bytes, little-endian. */
static int read_fixed(proto_message *m, size_t size, uint64_t *out)
{
    if ((size_t)(m->end - m->at) < size) return 0;
    *out = 0;
    for (size_t i = size; i-- > 0;) *out = *out << 8 | m->at[i];
    m->at += size;
    return 1;
}

int proto_next(proto_message *m, proto_field *out)
{
    uint64_t tag;
    *out = (proto_field){0};
    if (m->at == m->end) return 0;
    if (!read_varint(m, &tag) || tag >> 3 == 0 || tag >> 3 >= 1u << 29) return -1;
    out->number = (uint32_t)(tag >> 3);
    out->type = (proto_type)(tag & 7);
    switch (out->type) {
    case PROTO_VARINT:
        return read_varint(m, &out->value) ? 1 : -1;
    case PROTO_I64:
        return read_fixed(m, 8, &out->value) ? 1 : -1;
    case PROTO_I32:
        return read_fixed(m, 4, &out->value) ? 1 : -1;
    case PROTO_BYTES:
        if (!read_varint(m, &out->value) || out->value > (uint64_t)(m->end - m->at)) return -1;
        out->data = (proto_message){m->at, m->at + out->value};
        m->at += out->value;
        return 1;
    }
    return -1;
}

float proto_float(const proto_field *f)
{
    const uint32_t bits = (uint32_t)f->value;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
