#!/bin/sh
# Configures projects with libmar inside, by add_subdirectory and by FetchContent (subproject/CMakeLists.txt has the checks).
# Then checks the compilers' flags and what would be installed. The nightly test `packages` builds and runs one.
# Called by ctest: test_subproject.sh SOURCE_DIR CC GENERATOR
set -eu
source_dir=$1 cc=$2 generator=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

for fetch in OFF ON; do
    build=$work/build_$fetch
    cmake -G "$generator" -S "$(dirname "$0")/subproject" -B "$build" -DLIBMAR="$source_dir" -DFETCH=$fetch \
        -DCMAKE_C_COMPILER="$cc" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >"$work/log" 2>&1 || {
        cat "$work/log"
        fail "FETCH=$fetch"
    }
    commands=$build/compile_commands.json
    [ "$(grep -c '"command":.*libmar.*kernels/cpu/' "$commands")" -gt 10 ] || fail "the library is not built: $(cat "$commands")"
    if grep -e '-Werror' "$commands"; then fail "warnings of the library are errors"; fi
    host=$(grep '"command":.*examples/generate.c' "$commands")
    [ "$(echo "$host" | wc -l)" = 2 ] || fail "not two programs: $host"
    case $host in *" -W"* | *_GNU_SOURCE* | *-fvisibility* | *gnu11*) fail "flags of the library reach the programs: $host" ;; esac
    if find "$build" -name cmake_install.cmake -exec grep -l 'libmar\.so\|libmar\.a\|mar\.h\|safetensors' {} +; then
        fail "the library would be installed"
    fi
done

# One that installs it.
cmake -S "$(dirname "$0")/subproject" -B "$build" -DMAR_INSTALL=ON >"$work/log" 2>&1 || {
    cat "$work/log"
    fail "MAR_INSTALL=ON"
}
find "$build" -name cmake_install.cmake -exec grep -l 'libmar\.so' {} + | grep -q . || fail "MAR_INSTALL=ON installs no library"
