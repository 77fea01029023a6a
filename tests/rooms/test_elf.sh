#!/bin/sh
# What was built loads no library from the working directory: no program and library there has an empty or a relative entry in
# its RPATH or RUNPATH. With "hardened", those that users get are: all addresses of functions are bound and read-only when the
# program begins, the stack is guarded and not executable, and calls that write to a buffer whose size is known are checked.
#
# usage: test_elf.sh BUILD_DIR [hardened]
set -eu
LC_ALL=C
export LC_ALL

fail() {
    echo "$*" >&2
    exit 1
}

# Prints "FILE: ENTRY" for each entry of `readelf -d` on standard input that the loader completes with the working directory.
relative_entries() {
    awk '/^File: / { file = substr($0, 7) }
         /\((RPATH|RUNPATH)\)/ {
             sub(/^[^[]*\[/, "")
             sub(/\]$/, "")
             count = split($0 ":", entry, ":") - 1
             for (i = 1; i <= count; i++)
                 if (entry[i] !~ "^(/|[$]ORIGIN(/|$)|[$]{ORIGIN}(/|$))") print file ": \"" entry[i] "\" in \"" $0 "\"" }'
}

# What is looked for is found.
for path in '/a/b:' ':/a' '/a::/b' 'lib' '.' '/a:$LIB' ''; do
    found=$(printf 'File: x\n 0x1d (RUNPATH)  Library runpath: [%s]\n' "$path" | relative_entries)
    [ -n "$found" ] || fail "nothing is found in the path \"$path\""
done
for path in '/a' '/a:/b/c' '$ORIGIN:$ORIGIN/../lib' '${ORIGIN}/x'; do
    found=$(printf 'File: x\n 0xf (RPATH)  Library rpath: [%s]\n' "$path" | relative_entries)
    [ -z "$found" ] || fail "a right path: $found"
done

# A bare Debian that another test makes here (tests/fresh) is none of the build's.
files=$(find "$1" \( -name CMakeFiles -o -path "$1/fresh" -o -path "$1/kit" \) -prune -o -type f \( -perm -u+x -o -name '*.so*' \) -print)
[ -n "$files" ] || fail "no programs in $1"
# shellcheck disable=SC2086  # the list is words; readelf only warns of files that are no ELF
found=$(readelf -d /dev/null $files 2>/dev/null | relative_entries)
[ -z "$found" ] || fail "the loader looks in the working directory (build anew what is older than this):
$found"
[ "${2:-}" = hardened ] || exit 0

for file in "$1/mar" "$1"/libmar.so "$1"/libmar-mpi.so; do
    [ -e "$file" ] || continue
    readelf -dW "$file" | grep -qE '\((FLAGS|FLAGS_1)\).*(BIND_)?NOW' || fail "$file: functions are bound when first called"
    readelf -lW "$file" | grep -q 'GNU_RELRO' || fail "$file: no RELRO: addresses of functions stay writable"
    readelf -lW "$file" | grep 'GNU_STACK' | grep -q 'RW ' || fail "$file: the stack is executable"
    [ "${file##*/}" = libmar-mpi.so ] && continue # too small to have arrays
    symbols=$(readelf --dyn-syms -W "$file")
    case $symbols in *__stack_chk_fail*) ;; *) fail "$file: the stack is not guarded" ;; esac
    case $symbols in *__snprintf_chk*) ;; *) fail "$file: writes to buffers are not checked" ;; esac
done
