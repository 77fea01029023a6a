/* Prompts of text-to-image models, from files and options. */
#ifndef TOOLS_PROMPTS_H
#define TOOLS_PROMPTS_H

#include <stddef.h>

enum {
    PROMPT_BYTES_MAX = 65536, /* bytes of a prompt */
    PROMPT_CLEANED_MAX = 4096 /* and of one that is cleaned, as mar_text_encode says */
};

/* Place of a prompt, for messages: "FILE, line 7", or only the file. */
typedef struct {
    const char *file;
    const char *unit; /* "line", "element", "annotation"; NULL: the file alone */
    size_t number;    /* from 1 */
} prompt_place;

/* {0} has no prompts. */
typedef struct {
    char **text;         /* [count] UTF-8, not blank, without NUL; owned */
    prompt_place *place; /* [count] owned; the files' names are not, but for `files` */
    int count;           /* prompts */
    int skipped;         /* bad prompts that were reported and left out: the command ends with status 1 */
    int capacity;        /* prompts that `text` and `place` have room for */
    char **files;        /* [file_count] paths of a folder's files, owned; places point to them */
    int file_count;
    int is_cleaned; /* 1: PROMPT_CLEANED_MAX is the limit, else PROMPT_BYTES_MAX */
} prompts;

/* Appends the prompts of a file, of a folder (tools/generate/prompt_folder.h), or of standard input for "-". A folder's
 * files are a prompt each: the whole text without ends of lines behind it. In other files names of columns and members
 * are prompt, prompts, caption or captions, in any case; one of them must be there, and no second one.
 *
 * - a prompt a line: lines end with LF, CR LF or CR.
 * - CSV (RFC 4180), with a header: a quoted field may have commas, doubled quotes and ends of lines.
 * - tab-separated values, with a header: a quoted field is read as Python's csv reads it, but never goes on in the next
 *   line; a record may end early.
 * - one column under its name, quoted as in CSV: commas and tabs are text.
 * - COCO's captions, a JSON object with "annotations": images in the order of their first annotation, and of each image
 *   its longest caption, the first of equals. LANTERN's preprocess.py does so.
 * - a JSON array of strings or objects.
 * - JSONL: a JSON object or string a line.
 *
 * The ending .csv, .tsv, .json, .jsonl or .ndjson of the file's name says which it is. For another name its content
 * does, by the first line that is not empty:
 *
 * - JSON or JSONL, if it begins with "{" or "[" and then a quote, a bracket or a brace; or if it is one quoted text. In
 *   a name that ends with .txt each line must be one, else quotes are text.
 * - one column, if it is one of the names above.
 * - a table, if fields between tabs or else commas have one of the names as it is; or have one with spaces beside it,
 *   and each other field may be a name, too.
 * - else a prompt a line.
 *
 * Refused by name is a binary file (Parquet, zip, gzip and others), and such a table with ";" or "|". Unless the name
 * ends with .txt, so is what only begins as another form: "<", YAML's "---" or "prompt:"; and a table whose columns
 * have other names, which are words of letters, digits, "_", "-" and ".": one of them is id, ends with _id or has a
 * name above as a part; or each other line has as many fields or more.
 *
 * All are UTF-8, with or without a byte order mark. What is broken is refused with its line.
 *
 * A prompt that is blank, has a NUL or invalid UTF-8, or is longer than the limit is reported with its line and left
 * out. `path` must stay as long as the prompts. Returns 0; or 1 after printing an error if the file cannot be read, has
 * no prompt, or has bad ones only and *p had none. */
int prompts_read(const char *path, prompts *p);
/* Does the same with text, char [size + 1] with a NUL at its end. Changes the text. `path` is for messages. */
int prompts_parse(char *text, size_t size, const char *path, prompts *p);

/* Appends a prompt, the value of --prompt. A bad one is reported and counted as skipped. Returns 0, or 1 after printing
 * "out of memory". */
int prompts_add(const char *text, prompts *p);

/* Returns what is wrong with a prompt, in a line that may be in why [size]; NULL if nothing is. is_cleaned: as in
 * prompts. */
const char *prompts_fault(int is_cleaned, const char *text, char *why, size_t size);

/* Reports prompt i with its place and leaves it out. */
void prompts_skip(prompts *p, int i, const char *fault);

void prompts_free(prompts *p); /* frees the prompts; {0} is fine */

#endif
