#include "tools/serve/access.h"

#include "tools/cli/command.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes the client's address: an IPv4 address, or the first half of an IPv6 one. */
static const char *access_client(const client_key *key, char text[INET6_ADDRSTRLEN])
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const int is_v4 = memcmp(key->address, mapped, sizeof mapped) == 0;
    return inet_ntop(is_v4 ? AF_INET : AF_INET6, key->address + (is_v4 ? sizeof mapped : 0), text, INET6_ADDRSTRLEN);
}

void access_note(const exchange *x, int is_whole)
{
    const access_format format = (access_format)x->service->options.access_log;
    const client_key key = exchange_client(x);
    const int images = x->owns_job && x->job ? x->job->spec.n : 0;
    const char *path = x->path ? x->path : "*";
    char client[INET6_ADDRSTRLEN], when[32];
    const time_t now = time(NULL);
    struct tm utc;
    text_buffer line;
    if (format == ACCESS_OFF) return;
    FILE *out = text_open(&line);
    if (!out) return;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    const double seconds = tool_seconds() - x->came;
    if (format == ACCESS_TEXT) {
        fprintf(out, "%s %s %s %s %d %.3f s", when, access_client(&key, client), x->method, path, x->code, seconds);
        if (images) fprintf(out, ", %d image%s", images, images == 1 ? "" : "s");
        fputs(is_whole ? "\n" : ", the client left\n", out);
    } else {
        fprintf(out,
                "{\"time\": \"%s\", \"client\": \"%s\", \"method\": \"%s\", \"path\": \"%s\", \"status\": %d, "
                "\"seconds\": %.3f, \"images\": %d, \"complete\": %s}\n",
                when, access_client(&key, client), x->method, path, x->code, seconds, images,
                is_whole ? "true" : "false");
    }
    if (text_close(out, &line) != 0) return;
    const ssize_t written = write(STDERR_FILENO, line.data, line.size); /* at once, so that lines do not mix */
    (void)written;
    free(line.data);
}
