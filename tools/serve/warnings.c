#include "tools/serve/warnings.h"

#include "base/printable.h"
#include "tools/serve/answer.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int warnings_add(warnings *w, const char *format, ...)
{
    char message[WARNING_BYTES];
    text_buffer text;
    va_list arguments;
    if (w->count++ >= WARNINGS_MAX) return 0;
    va_start(arguments, format);
    const int n = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (n >= (int)sizeof message) message[printable_whole(message, sizeof message - 1)] = '\0';
    FILE *out = text_open(&text);
    if (!out) return 1;
    if (w->text) fprintf(out, "%s, ", w->text);
    json_string(out, message);
    if (text_close(out, &text) != 0) return 1;
    free(w->text);
    w->text = text.data;
    w->size = text.size;
    return 0;
}

void warnings_write(const warnings *w, FILE *out)
{
    if (!w->text) return;
    fprintf(out, ", \"warnings\": [%s", w->text);
    if (w->count > WARNINGS_MAX) fprintf(out, ", \"and %d more\"", w->count - WARNINGS_MAX);
    putc(']', out);
}

void warnings_free(warnings *w)
{
    free(w->text);
    *w = (warnings){0};
}
