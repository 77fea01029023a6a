/* Prints the result of launch_find for this process: shown [--shard i/n]. */
#include "tools/cli/launch.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const char *const kinds[] = {"alone", "shard", "mpi"};
    launch first, again;
    const char *shard = argc > 1 ? argv[1] : NULL;
    if (launch_find(shard, &first) != 0) return 1;
    if (launch_find(shard, &again) != 0 || memcmp(&first, &again, sizeof first) != 0) {
        printf("the second call says something else\n");
        return 1;
    }
    /* One write: lines of several processes do not mix. */
    char line[256];
    snprintf(line, sizeof line, "%s %d/%d local %d/%d by %s\n", kinds[first.kind], first.index, first.count,
             first.local_index, first.local_count, first.source);
    fputs(line, stdout);
    return 0;
}
