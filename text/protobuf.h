/* Protocol buffers: reads the fields of a message one after another. Every length is checked, nothing is allocated.
 * Encoding: protobuf.dev/programming-guides/encoding. */
#ifndef TEXT_PROTOBUF_H
#define TEXT_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

/* The rest of a message. */
typedef struct {
    const uint8_t *at, *end;
} proto_message;

typedef enum { PROTO_VARINT = 0, PROTO_I64 = 1, PROTO_BYTES = 2, PROTO_I32 = 5 } proto_type;

typedef struct {
    uint32_t number; /* 1 .. 2^29-1 */
    proto_type type;
    uint64_t value;     /* of VARINT, I64, I32 */
    proto_message data; /* of BYTES: a string, or a message to read */
} proto_field;

/* Reads the next field. Returns 1; 0 at the message's end; -1 if the field is damaged or of a type without use
 * (groups). */
int proto_next(proto_message *m, proto_field *out);
/* Returns the number of an I32 field as a float. */
float proto_float(const proto_field *f);

#endif
