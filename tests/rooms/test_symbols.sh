#!/bin/sh
# A library in someone's process does not end it, print, or change what all of its threads share.
# test_symbols.sh LIBRARY: fails if it asks the C library for the means.
set -eu
library=$1
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
[ -z "$found" ] || {
    printf '%s uses %s\n' "$library" "$found" >&2
    exit 1
}
