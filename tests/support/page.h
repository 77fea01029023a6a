/* Pages of the command (tools/page/page.h), read by a test. */
#ifndef TESTS_PAGE_H
#define TESTS_PAGE_H

#include <cjson/cJSON.h>

/* Reads the record of a page and takes "extras" out of it, for the caller to delete both. Fails the test unless the
 * page is whole, loads and parses nothing else, has nothing from outside that is markup, and says its kind, command
 * line, date, version and machine. */
cJSON *page_record(const char *directory, const char *name, const char *kind, cJSON **extras);

/* Returns the pixels of a data URI, [height][width][3], which the caller frees. */
unsigned char *page_pixels(const cJSON *uri, int *width, int *height);

#endif
