/* Pages: template.html with a JSON record in it, which the template's script draws. A page is one HTML file that needs
 * no other.
 *
 * The record is that of the run, as result.json or --json has it, and one object more, "extras": the kind of the page,
 * the command line, date and machine, and what only a page shows, such as pictures. */
#ifndef TOOLS_PAGE_H
#define TOOLS_PAGE_H

#include "tools/images/image.h"

typedef struct cJSON cJSON;

/* Keeps the command line for the pages of this process; argv must stay. */
void page_set_command(int argc, char **argv);

/* Adds "extras" to a record that tool_json began. `kind`: "fidelity", "eval", "sweep" or "search". The record owns the
 * object, to which the caller may add; NULL if memory ran out, which page_write says. */
cJSON *page_add_extras(cJSON *record, const char *kind);

/* Appends the picture to a list, as a data URI of a PNG. */
void page_add_picture(cJSON *list, const image *picture);

/* Deletes the record and writes the page, whole or not at all. Returns 0, or 1 after printing an error. */
int page_write(cJSON *record, const char *path);

/* Reads the record of a page that page_write has written. The caller deletes it. NULL if there is none. */
cJSON *page_read(const char *path);

#endif
