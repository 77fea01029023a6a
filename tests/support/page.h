/* Reads pages of the command (tools/page/page.h) in tests. */
#ifndef TESTS_PAGE_H
#define TESTS_PAGE_H

#include <cjson/cJSON.h>

/* Reads the record of a page and takes "extras" out of it. The caller deletes both. Fails the test unless the page is
 * complete, loads and parses nothing else, and has no markup from user data. The page must state its kind, command
 * line, date, version and machine. */
cJSON *page_record(const char *directory, const char *name, const char *kind, cJSON **extras);

/* Returns the pixels of a data URI, [height][width][3]. The caller frees them. */
unsigned char *page_pixels(const cJSON *uri, int *width, int *height);

#endif
