#!/bin/sh
# Tests the installed header. It and the ten lines at its top must compile without a warning. This holds for every
# promised version of C and C++ and each available compiler. gcc and g++ are required; a missing clang is reported.
# Called by ctest: test_header.sh BUILD_DIR
set -eu
build_dir=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

cmake --install "$build_dir" --prefix "$work" >"$work/install.log" 2>&1 || {
    cat "$work/install.log"
    fail "cmake --install"
}
header=$work/include/mar.h
[ -s "$header" ] || fail "mar.h is not installed"

# The example in the header's comment: its indented lines.
sed -n '/^#ifndef/q; s/^ \*     //p' "$header" >"$work/example"
[ "$(grep -c mar_ "$work/example")" -ge 9 ] || fail "the header has no example: $(cat "$work/example")"
cat >"$work/program.c" <<'END'
#include <mar.h>
#include <mar.h> /* twice */

uint8_t *image(uint8_t *rgb);
mar_status open_defaults(mar **out);
mar_status open_cpu(mar **out);

uint8_t *image(uint8_t *rgb)
{
#include "example"
    return rgb;
}

mar_status open_defaults(mar **out)
{
    mar_options o;
    mar_options_init(&o, sizeof o);
    return mar_open(&o, out);
}

mar_status open_cpu(mar **out)
{
    EMPTY(mar_options, o);
    EMPTY(mar_stats, stats);
    o.size = sizeof o;
    o.backend = MAR_BACKEND_CPU;
    o.threads = stats.tokens == 0 ? 1 : 2;
    return mar_open(&o, out);
}
END
cp "$work/program.c" "$work/program.cpp"

# compile COMPILER STANDARD FILE INITIALISER [WARNING...]
compile() {
    compiler=$1 standard=$2 file=$3 initialiser=$4
    shift 4
    "$compiler" "-std=$standard" -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef "$@" -Werror \
        "-DEMPTY(type, name)=type name = $initialiser" -I"$work/include" -I"$work" -c "$work/$file" \
        -o "$work/program.o" || fail "$compiler -std=$standard"
    count=$((count + 1))
}

# declares FLAGS TEXT: checks the declaration of mar_gpu_count with these flags
declares() {
    # shellcheck disable=SC2086  # flags are words
    echo '#include <mar.h>' | gcc -E -P $1 -I"$work/include" - | tr -s '\n ' ' ' | grep -qF "$2 int mar_gpu_count(void);" ||
        fail "gcc $1 does not declare \"$2 int mar_gpu_count\""
}
declares -U_WIN32 '__attribute__((visibility("default")))'
declares -D_WIN32 '__declspec(dllimport)'
declares '-D_WIN32 -DMAR_BUILDING' '__declspec(dllexport)'
declares '-D_WIN32 -DMAR_STATIC' ';'
declares '-U__GNUC__' ';'

# takes COMPILER STANDARD LANGUAGE: tells whether the compiler knows the standard
takes() {
    echo 'int unused;' | "$1" "-std=$2" -x "$3" -c -o "$work/empty.o" - 2>/dev/null
}

for compiler in gcc clang; do
    count=0
    if ! command -v "$compiler" >/dev/null; then
        [ "$compiler" = clang ] || fail "there is no $compiler"
        echo "SKIPPED: clang is not installed: the header was not compiled with it"
        continue
    fi
    for standard in c99 c11 c17 c2x gnu11; do
        compile "$compiler" "$standard" program.c '{0}' -Wstrict-prototypes -Wmissing-prototypes
    done
    echo "$compiler: $count standards of C"
done

for compiler in g++ clang++; do
    count=0
    if ! command -v "$compiler" >/dev/null; then
        [ "$compiler" = clang++ ] || fail "there is no $compiler"
        echo "SKIPPED: clang++ is not installed: the header was not compiled with it"
        continue
    fi
    for standard in c++11 c++14 c++17 c++20 c++23 c++26 gnu++17; do
        [ "$standard" != c++23 ] || takes "$compiler" c++23 c++ || standard=c++2b
        [ "$standard" != c++26 ] || takes "$compiler" c++26 c++ || continue
        compile "$compiler" "$standard" program.cpp '{}' -Wmissing-field-initializers -Wold-style-cast
    done
    echo "$compiler: $count standards of C++"
done
