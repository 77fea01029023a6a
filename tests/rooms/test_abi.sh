#!/bin/sh
# Checks that the public headers have the binary interface of abi.txt, and that abi.sh tells changes that break programs (status 2)
# from additions (status 1).
# Called by ctest: test_abi.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"$here/abi.sh"

work=$(mktemp -d)
trap 'rm -rf "$work" "$work.message"' EXIT

# change EDIT STATUS MESSAGE: the headers after that edit
change() {
    for header in "$here"/../../include/*.h; do sed "$1" "$header" >"$work/${header##*/}"; done
    status=0
    "$here/abi.sh" "$work" 2>"$work.message" || status=$?
    [ "$status" = "$2" ] && [ "$(wc -l <"$work.message")" = 1 ] && grep -qF "$3" "$work.message" || {
        echo "FAILED: after $1 status $status, expected $2 and one line with \"$3\":" >&2
        cat "$work.message" >&2
        exit 1
    }
}

change 's/MAR_ECANCELLED,/MAR_LATER, &/' 2 'MAR_ECANCELLED was 7, and is 8'
change 's/MAR_ECANCELLED,/& MAR_LATER,/' 1 'MAR_LATER is new. Run tests/rooms/abi.sh --update'
change 's/^    int threads;/    int first, second; &/' 2 'mar_options.first is new and not at the end'
change 's/^    int threads;/    float threads;/' 2 'mar_options.threads was at 12, 4 bytes, int'
change 's/^    double plain_s;/& int last, reserved;/' 1 'mar_stats.last is new'
change 's/^    double plain_s;/& int last;/' 2 'mar_stats has padding at its end'
change '/^    int tune;/,/^} mar_options;/s/int reserved;/int now_used;/' 1 'mar_options.now_used is new'
change '/mar_gpu_count(/d' 2 'mar_gpu_count is gone'
change 's/mar_gpu_count(void)/mar_gpu_count(int backend)/' 2 'mar_gpu_count was int (void)'
change 's/^typedef void mar_log_function/typedef int mar_log_function/' 2 'mar_log_function was void'
