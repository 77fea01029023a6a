/* Pages: template.html with a JSON record. The template's script draws the record. A page is one self-contained HTML
 * file.
 *
 * The record is that of the run, as in result.json or --json, with an object "extras". That has the kind of the page,
 * the command line, date and machine, and what only a page shows, such as pictures. */
#ifndef TOOLS_PAGE_H
#define TOOLS_PAGE_H

#include "tools/images/image.h"

typedef struct cJSON cJSON;

/* Keeps the command line for the pages of this process. argv must stay valid. */
void page_set_command(int argc, char **argv);

/* Adds "extras" to a record of tool_json. `kind`: "fidelity" or "eval". The record owns the object,
 * and the caller may add to it. Returns NULL without memory; page_write reports that. */
cJSON *page_add_extras(cJSON *record, const char *kind);

/* Appends the picture to a list, as a data URI of a PNG. */
void page_add_picture(cJSON *list, const image *picture);

/* Deletes the record and writes the page, whole or not at all. Returns 0, or 1 with the error printed. */
int page_write(cJSON *record, const char *path);

#endif
