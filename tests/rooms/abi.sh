#!/bin/sh
# Compares the binary interface of include/*.h with the committed list, abi.txt: functions, callbacks, enumerators,
# and the structs with offset, size and type of each field, on a 64-bit system.
# abi.sh [FOLDER]: fails with one line on a difference.
# abi.sh --update: writes the list anew. Fails and writes nothing if programs compiled with the old mar.h would break.
# CONTRIBUTING.md has the rules.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
list=$here/abi.txt
update=
if [ "${1:-}" = --update ]; then
    update=1
    shift
fi
folder=${1:-$here/../../include}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$folder"/*.h "$work"
(cd "$folder" && printf '#include "%s"\n' *.h) >"$work/all.h"

# Writes a program that prints fields and enumerators. Callbacks become functions, of which gcc writes the types.
gcc -E -P "$work/all.h" | tr '\n' ' ' | awk '
function trim(s) { gsub(/^ +| +$/, "", s); return s }
BEGIN { RS = "typedef "; print "#include \"all.h\"\n#include <stddef.h>\n#include <stdio.h>" }
/^struct \{/ || /^enum \{/ {
    kind = $1
    body = substr($0, index($0, "{") + 1, index($0, "}") - index($0, "{") - 1)
    name = substr($0, index($0, "}") + 1)
    name = trim(substr(name, 1, index(name, ";") - 1))
    if (name !~ /^mar_/) next
    n = split(body, part, kind == "enum" ? "," : ";")
    if (kind == "struct") main = main "STRUCT(" name ")\n"
    for (i = 1; i <= n; i++) {
        if (trim(part[i]) == "") continue
        if (kind == "enum") {
            sub(/=.*/, "", part[i])
            main = main "ENUMERATOR(" trim(part[i]) ")\n"
            continue
        }
        m = split(part[i], one, ",")
        for (k = 1; k <= m; k++) {
            array = match(one[k], /\[.*\]/) ? substr(one[k], RSTART, RLENGTH) : ""
            sub(/\[.*/, "", one[k])
            field = one[k] = trim(one[k])
            sub(/.*[ *]/, "", field)
            type = trim(substr(one[k], 1, length(one[k]) - length(field)))
            if (k == 1) { base = type; sub(/[ *]+$/, "", base) } else type = trim(base " " type)
            main = main "FIELD(" name ", " field ", \"" type array "\")\n"
        }
    }
    next
}
/^[a-z0-9_ ]*[ *]mar_[a-z0-9_]*\(/ {
    sub(/;.*/, ";")
    sub(/mar_[a-z0-9_]*\(/, "callback_&")
    print
}
END {
    print "#define ENUMERATOR(name) printf(\"enumerator %s %d\\n\", #name, (int)name);"
    print "#define STRUCT(type) printf(\"struct %s %zu\\n\", #type, sizeof(type));"
    print "#define FIELD(type, field, text) \\"
    print "    printf(\"field %s.%s %zu %zu %s\\n\", #type, #field, offsetof(type, field), sizeof(((type *)0)->field), text);"
    print "int main(void)\n{\n" main "}"
}' >"$work/list.c"
gcc -aux-info "$work/types" -I"$work" "$work/list.c" -o "$work/list"
{
    sed -n 's/.* SOVERSION \([0-9]*\).*/soversion \1/p' "$here/../../CMakeLists.txt"
    sed -n 's/.*\/mar[a-z_]*[.]h:.*extern \(.*[ *]\)\(mar_[a-z0-9_]*\) (\(.*\));$/function \2 \1(\3)/p' "$work/types"
    sed -n 's/.*extern \(.*[ *]\)callback_\(mar_[a-z0-9_]*\) (\(.*\));$/callback \2 \1(\3)/p' "$work/types"
    "$work/list"
} >"$work/abi.txt"
for kind in function callback enumerator struct field; do
    grep -q "^$kind mar_\|^$kind MAR_" "$work/abi.txt" || {
        echo "FAILED: no $kind found in $folder" >&2
        exit 1
    }
done
[ -e "$list" ] || [ -z "$update" ] || cp "$work/abi.txt" "$list"

# One line: the first difference. Exit status 1: something was added; 2: programs would break.
status=0
awk '
function wrong(text) {
    if (breaks++ == 0) line = text
}
function broken(text) {
    wrong(text ". Programs compiled with the old mar.h break: undo it, or see \"ABI\" in CONTRIBUTING.md")
}
function added(text) {
    if (additions++ == 0) addition = text ". Run tests/rooms/abi.sh --update and commit tests/rooms/abi.txt"
}
function shown(key, value, part) {
    split(value, part, " ")
    return key !~ /^field/ ? value : "at " part[1] ", " part[2] " bytes, " substr(value, length(part[1] part[2]) + 3)
}
{
    key = $1 " " $2
    value = substr($0, length(key) + 2)
    owner = $2
    sub(/[.].*/, "", owner)
}
NR == FNR {
    old[key] = value
    old_order[++old_count] = key
    if (key ~ /^field .*[.]reserved/) reserved[owner " " $3 " " $4 " " $5] = 1
    next
}
{
    new[key] = value
    name = $2
    if ($1 == "struct") size[name] = $3
    if ($1 == "field") {
        field[owner " " $3 " " $4 " " $5] = 1
        if (!(owner in end) && !($2 ~ /[.]size$/ && $3 == 0 && $5 == "size_t"))
            wrong(owner " does not begin with size_t size. No field could be added to it: see \"ABI\" in CONTRIBUTING.md")
        end[owner] = $3 + $4
    }
    if (key in old) {
        if (value == old[key]) next
        if ($1 != "struct") broken(name " was " shown(key, old[key]) ", and is " shown(key, value))
        else if ($3 < old[key] + 0) broken(name " has " $3 " bytes, and had " old[key])
    } else if ($1 == "field" && (("struct " owner) in old)) {
        if (!((owner " " $3 " " $4 " " $5) in reserved) && $3 < old["struct " owner] + 0) broken(name " is new and not at the end")
        else added(name " is new")
    } else if ($1 != "field") added(name " is new")
}
END {
    for (name in size)
        if (size[name] != end[name])
            wrong(name " has padding at its end, where a new field would not change its size. Order the fields, or add int reserved")
    for (i = 1; i <= old_count; i++) {
        key = old_order[i]
        if (key in new) continue
        split(key, word, " ")
        split(old[key], was, " ")
        struct = word[2]
        sub(/[.].*/, "", struct)
        if (word[1] == "soversion") {
            print "SOVERSION is another. Run tests/rooms/abi.sh --update and commit tests/rooms/abi.txt"
            exit 1
        }
        if (key ~ /^field .*[.]reserved/ && ((struct " " was[1] " " was[2] " " was[3]) in field)) continue
        broken(word[2] " is gone")
    }
    if (breaks + additions == 0) exit 0
    print (breaks ? line : addition) (breaks + additions > 1 ? " (" breaks + additions - 1 " more)" : "")
    exit breaks ? 2 : 1
}' "$list" "$work/abi.txt" >&2 || status=$?
[ -n "$update" ] || exit "$status"
[ "$status" != 2 ] || exit 2
cp "$work/abi.txt" "$list"
