/* multipart/form-data (RFC 7578): a strict reader that works in place, in time proportional to the body. */
#ifndef TOOLS_SERVE_FORM_H
#define TOOLS_SERVE_FORM_H

#include <stddef.h>

enum { FORM_BOUNDARY_MAX = 70, FORM_WHY_MAX = 256 };

typedef struct {
    char *at, *end;                        /* unread part of the body */
    char delimiter[FORM_BOUNDARY_MAX + 5]; /* "\r\n--BOUNDARY" */
    size_t length;                         /* of the delimiter */
    int part;                              /* number of the last part, from 1; 0: none yet */
    int is_over;                           /* 1: the last delimiter ends the form */
} form_reader;

typedef struct {
    const char *name; /* from the Content-Disposition, with a NUL */
    char *data;       /* [size], then a NUL */
    size_t size;
} form_part;

typedef enum { FORM_PART, FORM_END, FORM_REFUSED } form_status;

/* Reads the boundary of a Content-Type. Returns 0, or 1 if there is none or it is invalid (RFC 2046). */
int form_boundary(const char *content_type, form_reader *f);

/* Begins to read body, char [size + 1] with a NUL, after form_boundary. */
void form_open(form_reader *f, char *body, size_t size);

/* Reads the next part, whose strings lie in the body. Writes the reason of a refusal to `why`, char [FORM_WHY_MAX]. */
form_status form_next(form_reader *f, form_part *out, char *why);

#endif
