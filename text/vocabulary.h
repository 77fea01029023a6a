/* Which ids of a language model's vocabulary are image tokens, and which one ends a row of them. Knows no family: a
 * family says where its ids are found. */
#ifndef TEXT_VOCABULARY_H
#define TEXT_VOCABULARY_H

#include "base/json.h"
#include "text/tokenizer.h"
#include "weights/weights.h"

typedef struct {
    int rows;      /* of the embedding: ids are below it */
    int count;     /* image tokens */
    int *image_id; /* [count + 1] id of each, by its number in the codebook; at the end line_end */
    int line_end;  /* id of the token behind each row of image tokens; -1: none */
} text_vocabulary;

/* Returns the number in the codebook that the name of an image token has, or -1 for another name. */
typedef int64_t text_image_number(const char *name);
enum { TEXT_CODEBOOK_MAX = 1 << 18 };

/* Begin with an empty vocabulary of so many rows, and find the image tokens where they are: in a map of names to ids;
 * in a tokenizer, which has the name that `write` makes of each number from 0 to the last; in a range of ids; in text
 * as text_vocabulary_put writes it. `f` is for messages. Return MAR_EMODEL for an id beyond the rows or one that is
 * there twice, for none at all and for one that is missing; and MAR_ENOMEM. After an error *v is empty. */
mar_status text_vocabulary_of_map(const wt_file *f, const json_value *map, text_image_number *number,
                                  text_vocabulary *v, mar_err *err);
typedef void text_image_name(int number, char name[32]);
mar_status text_vocabulary_of_tokenizer(const wt_file *f, const text_tokenizer *t, text_image_name *write,
                                        text_vocabulary *v, mar_err *err);
mar_status text_vocabulary_of_range(const wt_file *f, int first, int end, text_vocabulary *v, mar_err *err);
mar_status text_vocabulary_of_text(const wt_file *f, const char *text, text_vocabulary *v, mar_err *err);
/* Sets the line end. Returns MAR_EMODEL, naming it, unless `id` is one of the rows and no image token. */
mar_status text_vocabulary_set_line_end(const wt_file *f, int64_t id, const char *name, text_vocabulary *v,
                                        mar_err *err);
void text_vocabulary_free(text_vocabulary *v); /* leaves it empty */

/* Writes the ids as "4-8195" or "7,5,9-12", in the order of the codebook. Returns a text for the caller to free; NULL
 * without memory. */
char *text_vocabulary_put(const text_vocabulary *v);

#endif
