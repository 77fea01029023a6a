#!/usr/bin/env bash
# The README's two commands on a bare Debian 12. Called by ctest, or by hand as root:
#   tests/fresh/test_fresh.sh SOURCE_DIR BUILD_DIR [--changed | ARGUMENTS]
# ARGUMENTS are the second command's, by default 'release'. '' runs all of it, as in the README.
# With --changed an install replaces the second command. Then the test is skipped if the files that determine
# installation, configuration and build are unchanged. Their hash is in the file `tried` beside this one.
# The test writes it whenever it passes: commit it.
#
# The root is made in BUILD_DIR/fresh (scripts/root.sh). In a clone there, the first command must make demo.png without
# installing a C++ compiler, make or packages of the tests. Then the second command with ARGUMENTS must pass, including
# the test `install`. For the presets that it omits, the packages are installed (with 1 GB of CUDA toolkit). These
# presets are configured and compile a small program (CMake does that itself for CUDA).
#
# Both commands are read from the README. The clone is HEAD plus uncommitted changes of tracked files. Untracked files
# are not in it, as in any clone.
set -euo pipefail
name=fresh
. "$(dirname "$0")/../../scripts/root.sh"
if [ "$1" != --inside ]; then
    tried=$1/tests/fresh/tried
    git -C "$1" rev-parse -q --verify HEAD >/dev/null 2>&1 || skip "$1 is not a checkout of git"
    files=$(cd "$1" && git ls-files scripts cmake '*CMakeLists.txt' '*.cmake' CMakePresets.json demo.sh test.sh |
        LC_ALL=C sort -u | while read -r file; do
            echo "$file"
            [ ! -e "$file" ] || cat "$file" # deleted, and git not told yet
        done | sha256sum | cut -d ' ' -f 1)
    if [ "${3:-}" = --changed ] && [ "$(cat "$tried" 2>/dev/null)" = "$files" ]; then
        skip "scripts, cmake and CMake files are those that $tried knows"
    fi
    in_namespaces "$0" "$1" "$2" "${3-release}"
    echo "$files" >"$tried"
    exit 0
fi

source_dir=$2 work=$3 arguments=$4 clone=/root/libmar
make_root
make_clone
in_clone=(chroot "$root" env -i "${variables[@]}" sh -c "cd $clone && exec sh -c \"\$1\"" sh)

# readme_command N: prints command N of the section Start, without its comment
readme_command() {
    sed -n '/^## Start$/,/^## /{/^```sh$/,/^```$/{/^```/!p}}' "$root$clone/README.md" | sed -n "$1{s/ *#.*//;p}"
}
first=$(readme_command 1) second=$(readme_command 2)
[ -n "$first" ] && [ -n "$second" ] || fail "no two commands in the README's section Start"

echo "== the first command: $first"
step 600 "${in_clone[@]}" "$first" || fail "$first"
[ "$(head -c 4 "$root$clone/demo.png" | tail -c 3)" = PNG ] || fail "$first left no picture demo.png"
for command in c++ g++ clang make nvcc; do
    ! "${in_clone[@]}" "command -v $command" || fail "$first installed $command"
done
! "${in_clone[@]}" "dpkg -s libcmocka-dev" >/dev/null 2>&1 || fail "$first installed cmocka"

if [ "$arguments" = --changed ]; then
    echo "== an install"
    step 300 "${in_clone[@]}" "cmake --build build/release && cmake --install build/release --prefix /usr >/dev/null && ldconfig &&
        cc examples/generate.c \$(pkg-config --cflags --libs libmar) -o /tmp/generate && /tmp/generate 7 /tmp/seven.ppm &&
        cd / && mar generate --class 7 --out seven.png" || fail "an installed libmar"
    [ "$(head -c 4 "$root/seven.png" | tail -c 3)" = PNG ] || fail "the installed command left no picture"
    echo "PASSED"
    exit 0
fi

second="$second${arguments:+ $arguments}"
echo "== the second command: $second"
step 4800 "${in_clone[@]}" "$second" 2>&1 | tee "$work/log" || fail "$second"
grep -qE ' install \.+ +Passed' "$work/log" || fail "$second did not run the test install"

# The omitted presets need the same packages and the compiler's own libraries. Checks that these are installed.
for preset in asan:address,undefined tsan:thread; do
    if grep -q "^== ${preset%:*}\$" "$work/log"; then continue; fi
    third="cmake --preset ${preset%:*} -DMAR_TESTS=ON && for language in c c++; do
        echo 'int main() { return 0; }' | gcc -x \$language -fsanitize=${preset#*:} - -o /tmp/sanitized &&
            /tmp/sanitized || exit 1; done"
    echo "== preset ${preset%:*}"
    step 300 "${in_clone[@]}" "$third" >"$work/log.${preset%:*}" 2>&1 || {
        cat "$work/log.${preset%:*}"
        fail "preset ${preset%:*}"
    }
done
if ! grep -q '^== fuzz$' "$work/log"; then
    echo "== preset fuzz"
    step 600 "${in_clone[@]}" ". scripts/packages.sh && need_packages \$test_packages \$fuzz_packages &&
        cmake --preset fuzz &&
        echo 'int LLVMFuzzerTestOneInput(const char *data, unsigned long n) { return !data && n; }' >/tmp/fuzz.c &&
        clang -fsanitize=fuzzer,address,undefined /tmp/fuzz.c -o /tmp/fuzz && /tmp/fuzz -runs=1" \
        >"$work/log.fuzz" 2>&1 || {
        cat "$work/log.fuzz"
        fail "preset fuzz"
    }
fi
if ! grep -q '^== cuda$' "$work/log"; then
    echo "== preset cuda"
    step 1200 "${in_clone[@]}" ". scripts/packages.sh && . scripts/cuda.sh && need_packages \$test_packages && need_cuda &&
        cmake --preset cuda -DMAR_TESTS=ON" \
        >"$work/log.cuda" 2>&1 || {
        cat "$work/log.cuda"
        fail "preset cuda"
    }
fi
echo "PASSED"
