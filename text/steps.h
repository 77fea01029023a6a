/* The steps before byte-pair encoding, as the `tokenizers` library has them: normalizers change a text, pre-tokenizers
 * cut it into words. */
#ifndef TEXT_STEPS_H
#define TEXT_STEPS_H

#include "text/pattern.h"

typedef enum {
    /* normalizers */
    STEP_NFC,
    STEP_NFD,
    STEP_NFKC,
    STEP_NFKD,
    STEP_LOWERCASE,
    STEP_REPLACE, /* matches of `pattern` by `text` */
    STEP_PREPEND, /* `text` before a text that is not empty */
    STEP_STRIP,   /* white space, at the `left` and `right` end */
    /* pre-tokenizers */
    STEP_SPLIT,  /* at matches of `pattern` */
    STEP_PREFIX, /* a space before each part that has none */
    STEP_BYTES   /* each byte by its character of GPT-2's table */
} step_kind;

/* How a split places matches and the text between them in parts. */
typedef enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT } split_behavior;

typedef struct {
    step_kind kind;
    text_pattern *pattern;
    char *text; /* owned, with a NUL at its end; may contain others */
    size_t length;
    int left, right;
    split_behavior behavior;
    int invert; /* matches and the text between them change places */
} text_step;

typedef struct {
    text_step *steps; /* [count] */
    size_t count, capacity;
} text_steps;

/* Adds a step, which the list then owns. Returns 0 without memory; then the step is freed. */
int text_steps_add(text_steps *s, text_step step);
void text_steps_free(text_steps *s);

/* A part of a text: a word, or an added token. */
typedef struct {
    size_t start, length;
    int32_t id; /* of an added token; -1 for a word */
} text_part;

typedef struct {
    text_buffer text;
    text_part *list; /* [count] */
    size_t count, capacity;
    int failed; /* a part had no memory */
} text_parts;

void text_add_part(text_parts *p, size_t start, size_t length, int32_t id);
void text_parts_free(text_parts *p);

/* Writes the character that GPT-2's table has for a byte: itself if it is printable, else one from U+0100 on. */
void text_put_byte(uint8_t byte, text_buffer *out);

/* Returns whether c has Unicode's property White_Space. */
int text_is_space(unsigned c);

/* Writes the normal form of text[n], valid UTF-8. Returns MAR_EARG if the matcher's budget is exceeded, or for more
 * than STEP_MARKS_MAX combining marks in a row, as sorting them takes the square of their number; or MAR_ENOMEM. */
mar_status text_normalize(const text_steps *s, text_matcher *m, const char *text, size_t n, text_buffer *out,
                          mar_err *err);
enum { STEP_MARKS_MAX = 2000 };

/* Cuts the words of *p. Returns MAR_EARG or MAR_ENOMEM, as above. */
mar_status text_split(const text_steps *s, text_matcher *m, text_parts *p, mar_err *err);

#endif
