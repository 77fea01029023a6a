#include "tools/cli/dashed.h"

#include "mar.h"
#include "tools/cli/text.h"

#include <stdio.h>
#include <string.h>

static int is_library_option(const char *name)
{
    for (int i = 0; i < mar_param_count(); i++)
        if (strcmp(mar_param_get(i)->name, name) == 0) return 1;
    for (int i = 0; i < mar_option_count(); i++)
        if (strcmp(mar_option_get(i)->name, name) == 0) return 1;
    return 0;
}

const char *dashed(const char *words, int in_prose, char *text, size_t size)
{
    static const char between[] = " ,;:()\n";
    int begins_clause = 0;
    text[0] = '\0';
    while (*words) {
        char word[64];
        size_t length = strcspn(words, between);
        const size_t stop = length > 1 && words[length - 1] == '.'; /* that of a sentence, not of "lazy.pth" */
        length -= stop;
        const size_t rest = stop + strspn(words + length + stop, between);
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        const int counts = !in_prose || begins_clause || strchr(word, '_');
        const int is_name = is_library_option(word) && counts;
        begins_clause = memchr(words + length, ';', rest) != NULL;
        text_append(text, size, "%s%.*s", is_name ? "--" : "", (int)(length + rest), words);
        words += length + rest;
    }
    return text;
}
