#!/bin/sh
# Checks that no built program or library loads a library from the working directory. Their RPATH and RUNPATH must have
# no empty or relative entry. With "hardened" it also checks the files that users get. Function addresses are bound and
# read-only at start. The stack is guarded and not executable. Writes to buffers of known size are checked.
#
# usage: test_elf.sh BUILD_DIR [hardened]
set -eu
LC_ALL=C
export LC_ALL

fail() {
    echo "$*" >&2
    exit 1
}

# Prints "FILE: ENTRY" for each entry of `readelf -d` on stdin that the loader resolves in the working directory.
relative_entries() {
    awk '/^File: / { file = substr($0, 7) }
         /\((RPATH|RUNPATH)\)/ {
             sub(/^[^[]*\[/, "")
             sub(/\]$/, "")
             count = split($0 ":", entry, ":") - 1
             for (i = 1; i <= count; i++)
                 if (entry[i] !~ "^(/|[$]ORIGIN(/|$)|[$]{ORIGIN}(/|$))") print file ": \"" entry[i] "\" in \"" $0 "\"" }'
}

# Checks that bad paths are found and good ones are not.
for path in '/a/b:' ':/a' '/a::/b' 'lib' '.' '/a:$LIB' ''; do
    found=$(printf 'File: x\n 0x1d (RUNPATH)  Library runpath: [%s]\n' "$path" | relative_entries)
    [ -n "$found" ] || fail "nothing is found in the path \"$path\""
done
for path in '/a' '/a:/b/c' '$ORIGIN:$ORIGIN/../lib' '${ORIGIN}/x'; do
    found=$(printf 'File: x\n 0xf (RPATH)  Library rpath: [%s]\n' "$path" | relative_entries)
    [ -z "$found" ] || fail "a right path: $found"
done

# Excludes the bare Debian that another test makes here (tests/fresh).
files=$(find "$1" \( -name CMakeFiles -o -path "$1/fresh" -o -path "$1/kit" -o -path "$1/packages" \) -prune -o -type f \( -perm -u+x -o -name '*.so*' \) -print)
[ -n "$files" ] || fail "no programs in $1"
# shellcheck disable=SC2086  # the list is words; readelf only warns about other than ELF files
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
