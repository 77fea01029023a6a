#!/bin/sh
# Tests the installed headers. Each, and the lines at the top of mar.h, must compile without a warning. This holds for
# every promised version of C and C++ and each available compiler. gcc and g++ are required; a missing clang is reported.
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
for name in mar mar_eval mar_files mar_measure mar_methods; do
    [ -s "$work/include/$name.h" ] || fail "$name.h is not installed"
    printf '#include <%s.h>\n#include <%s.h>\n' "$name" "$name" >"$work/$name.c" # twice
    cp "$work/$name.c" "$work/$name.cpp"
done

# The example in the header's comment: its indented lines.
sed -n '/^#ifndef/q; s/^ \*     //p' "$header" >"$work/example"
for call in mar_open mar_pipeline_load mar_job_init mar_generate mar_rgb_free mar_pipeline_free mar_close; do
    grep -q "$call(" "$work/example" || fail "the header's example has no $call: $(cat "$work/example")"
done
cat >"$work/program.c" <<'END'
#include <mar.h>
#include <stdio.h>

void image(FILE *file);
mar_status open_defaults(mar **out);
mar_status open_cpu(mar **out);

void image(FILE *file)
{
#include "example"
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
    EMPTY(mar_job, job);
    o.size = sizeof o;
    o.backend = MAR_BACKEND_CPU;
    o.threads = job.label == 0 ? 1 : 2;
    return mar_open(&o, out);
}
END
cp "$work/program.c" "$work/program.cpp"

# compile COMPILER STANDARD SUFFIX INITIALISER [WARNING...]
compile() {
    compiler=$1 standard=$2 suffix=$3 initialiser=$4
    shift 4
    set -- -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef "$@"
    for name in mar mar_eval mar_files mar_measure mar_methods program; do
        [ "$name.$suffix" != program.cpp ] || set -- "$@" -Wno-old-style-cast # of the example, which is C
        "$compiler" "-std=$standard" "$@" -Werror "-DEMPTY(type, name)=type name = $initialiser" -I"$work/include" \
            -I"$work" -c "$work/$name.$suffix" -o "$work/program.o" || fail "$compiler -std=$standard: $name.$suffix"
    done
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
        compile "$compiler" "$standard" c '{0}' -Wstrict-prototypes -Wmissing-prototypes
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
        compile "$compiler" "$standard" cpp '{}' -Wmissing-field-initializers -Wold-style-cast
    done
    echo "$compiler: $count standards of C++"
done
