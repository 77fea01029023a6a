#!/bin/sh
# Checks that the library does not end its process, print, or change state shared by all its threads.
# test_symbols.sh LIBRARY ARCHIVE [cuda]: fails if the library imports functions for that, or loads a library other than
# the C library, zlib, PCRE2 and utf8proc. With CUDA, whose runtime does both, this is not checked. Library and archive must export exactly
# the declarations of mar.h. The library's own calls to them must not resolve to a program's function of the same name.
set -eu
library=$1 archive=$2 cuda=${3:-}
headers=$(dirname "$0")/../../include
forbidden='_?exit|_Exit|quick_exit|abort|__assert_fail|kill|raise|umask|setlocale|uselocale|signal|sigaction|sigprocmask|bsd_signal
sched_setaffinity|pthread_setaffinity_np|setenv|unsetenv|putenv|chdir|fchdir|srand|srand48|strtok|rand
printf|vprintf|puts|putchar|perror|psignal|warn|warnx|err|errx|syslog|stdout|stderr|__printf_chk|__vprintf_chk'
pattern=$(printf '%s' "$forbidden" | tr '\n' '|')
symbols=$(nm -D --undefined-only "$library" | sed 's/.* //; s/@.*//' | sort -u)
[ -n "$symbols" ] || {
    echo "no symbols in $library" >&2
    exit 1
}
found=$(printf '%s\n' "$symbols" | grep -xE "$pattern" || true)
[ -n "$cuda" ] || [ -z "$found" ] || {
    printf '%s uses %s\n' "$library" "$found" >&2
    exit 1
}

allowed='libc[.]so[.]6|libm[.]so[.]6|libz[.]so[.]1|libpcre2-8[.]so[.]0|libutf8proc[.]so[.][0-9]|ld-linux-.*'
needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
printf '%s\n' "$needed" | grep -qx 'libc[.]so[.]6' || {
    echo "$library does not load the C library: $needed" >&2
    exit 1
}
found=$(printf '%s\n' "$needed" | grep -vxE "$allowed" || true)
[ -n "$cuda" ] || [ -z "$found" ] || {
    printf '%s loads %s\n' "$library" "$found" >&2
    exit 1
}

exported=$(nm -D --defined-only "$library" | sed 's/.* //' | sort -u)
declared=$(cat "$headers"/*.h | grep '^MAR_API' | sed 's/(.*//; s/.*[ *]//' | sort -u)
[ "$exported" = "$declared" ] || {
    echo "$library does not export what include/*.h declare:" $(printf '%s\n' "$exported" "$declared" | sort | uniq -u) >&2
    exit 1
}
in_archive=$(nm -g --defined-only "$archive" | sed -n 's/.* [A-Z] //p' | sort -u)
[ "$in_archive" = "$declared" ] || {
    echo "$archive does not export what include/*.h declare:" $(printf '%s\n' "$in_archive" "$declared" | sort | uniq -u) >&2
    exit 1
}
# The loader looks up a relocation by name in the program first.
found=$(readelf -rW "$library" | awk 'NF >= 5 { print $5 }' | sed 's/@.*//' | sort -u | grep -xF "$exported" || true)
[ -z "$found" ] || {
    printf 'a program can take the place of %s in %s\n' "$found" "$library" >&2
    exit 1
}
