#!/bin/sh
# Checks calls between files by the symbols of a build's objects. Files must not form a cycle, and no call may go upward
# in order.txt. A reference to data counts as a call.
#
# usage: test_calls.sh SOURCE BUILD
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# Prints "FROM TO" for every file of $1 that refers to a symbol of another. stdin: nm --format=posix -A of the objects.
calls() {
    awk -v source="$1" '
        { path = $1
          sub(/:$/, "", path)
          folder = path ~ /\/tools\/CMakeFiles\// ? "tools/" : ""
          sub(/.*\/CMakeFiles\/[^\/]*[.]dir\//, "", path)
          file = folder path
          sub(/[.]o$/, "", file)
          if (!(file in is_there)) is_there[file] = (getline line < (source "/" file)) >= 0
          if (!is_there[file]) next # of a file that was removed since
          sub(/[.][a-zS]+$/, "", file)
          if ($3 ~ /^[TDRBVWCG]$/) defined[$2] = file
          else if ($3 == "U" || $3 == "w") used[file " " $2] = 1 }
        END { for (pair in used) {
                  split(pair, part, " ")
                  if (part[2] in defined && defined[part[2]] != part[1]) print part[1], defined[part[2]]
              } }' | sort -u
}

# Prints the faults of the edges on stdin.
faults() {
    edges=$(cat)
    printf '%s\n' "$edges" | tsort 2>&1 >/dev/null | sed 's/^tsort: //'
    printf '%s\n' "$edges" | awk -v order="$here/order.txt" '
        BEGIN { while ((getline line < order) > 0)
                    if (line !~ /^#/) { n = split(line, room, " "); rank++; for (i = 1; i <= n; i++) level[room[i]] = rank } }
        function room_of(file) { sub("/[^/]*$", "", file); sub("^specdec/methods$", "specdec", file); return file }
        NF { from = room_of($1); to = room_of($2)
             if (!(from in level)) print from " is not in order.txt"
             else if (!(to in level)) print to " is not in order.txt"
             else if (from != to && !(substr(from, 1, length(to) + 1) == to "/" || substr(to, 1, length(from) + 1) == from "/") \
                      && level[to] >= level[from]) print $1 " calls " $2 ", which is not below it"
             else if (from != to && level[to] > level[from]) print $1 " calls " $2 ", which is above it" }'
}

fail() { echo "$*" >&2; exit 1; }

# Checks that planted faults are found.
[ -z "$(printf 'tools/main tools/eval/a\nmar/api/a mar/core/b\nkernels/cpu/a kernels/b\n' | faults)" ] || fail "a right tree fails"
printf 'mar/core/a mar/api/b\n' | faults | grep -q 'not below' || fail "an upward call is not found"
printf 'eval/a vae/b\n' | faults | grep -q 'not below' || fail "a call aside is not found"
printf 'base/a base/b\nbase/b base/c\nbase/c base/a\n' | faults | grep -q loop || fail "a circle is not found"

edges=$(find "$2/CMakeFiles" "$2/tools/CMakeFiles" -path '*/mar_*.dir/*' -name '*.o' -exec nm -A --format=posix {} + | calls "$1")
[ "$(printf '%s\n' "$edges" | wc -l)" -gt 500 ] || fail "only $(printf '%s\n' "$edges" | wc -l) calls found in $2"
found=$(printf '%s\n' "$edges" | faults)
[ -z "$found" ] || fail "$found"
