#!/bin/sh
# Checks includes between files. A pair X.c and X.h (or .cu, .cuh) counts as one file:
#
# - No pair includes itself through others.
# - A room includes only rooms above it in order.txt. tools/ includes only public headers, headers of base and eval, and
#   weights/npz.h.
#
# usage: test_includes.sh SOURCE
set -eu
folders='base kernels weights text nets specdec diffusion families eval vae mar tools'
order=$(cd "$(dirname "$0")" && pwd)/order.txt

# Pairs that include each other without a cycle of files. The header that one half includes does not include that half.
#   kernels/cuda/persistent_layers is the second half of one CUDA kernel; persistent.cu includes it.
known='kernels/cuda/persistent kernels/cuda/persistent_layers'

# Prints "FROM TO" for every include in the folders of $1, both without their endings.
includes() {
  (cd "$1" && find $folders -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
    -exec grep -HE '^ *# *include +"' {} +) |
    awk -F'[:"]' '{ from = $1; to = $3; sub(/\.[a-z]+$/, "", from); sub(/\.[a-z]+$/, "", to)
                    if (to !~ "/" && to !~ /^mar(_[a-z]+)?$/) {
                      print from " includes " to ", expected a path from the root" > "/dev/stderr"
                      bad = 1
                    }
                    if (from != to) print from, to }
                  END { exit bad }'
}

# Prints the faults of the tree $1, or nothing if it has none.
faults() {
  list=$(includes "$1" 2>&1) || { printf '%s\n' "$list" | grep ', expected'; return; }
  list=$(printf '%s\n' "$list" | sort -u)
  printf '%s\n' "$list" | grep -vxF "$known" | tsort 2>&1 >/dev/null | sed 's/^tsort: //'
  printf '%s\n' "$list" | awk -v order="$order" '
    BEGIN { while ((getline line < order) > 0)
              if (line !~ /^#/) { n = split(line, room, " "); rank++; for (i = 1; i <= n; i++) level[room[i]] = rank } }
    function room_of(file) { sub("/[^/]*$", "", file); sub("^specdec/methods$", "specdec", file); return file }
    function is_within(a, b) { return substr(a, 1, length(b) + 1) == b "/" }
    $2 ~ /^mar(_[a-z]+)?$/ { next }
    { from = room_of($1); to = room_of($2) }
    from == to || is_within(from, to) && level[from] == level[to] || is_within(to, from) && level[from] == level[to] { next }
    !(from in level) { print $1 " is in none of the rooms"; next }
    !(to in level) { print $1 " includes " $2 ", which is in none of the rooms"; next }
    level[to] >= level[from] { print $1 " includes " $2 ", which is not below it" }
    from ~ /^tools/ && to !~ /^tools/ && to != "base" && to != "eval" && $2 != "weights/npz" {
      print $1 " includes " $2 ", expected public headers, base/*.h, eval/*.h, weights/npz.h or tools/*.h" }'
}

fail() { echo "$*" >&2; exit 1; }

found=$(faults "$1")
[ -z "$found" ] || fail "$found"

# Checks that faults are found: each tree below has one.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
expect() { # MESSAGE FILE INCLUDED...
  message=$1
  shift
  rm -rf "$scratch/tree"
  for folder in $folders mar/core mar/api tools/cli tools/eval; do mkdir -p "$scratch/tree/$folder"; done
  while [ $# -gt 1 ]; do
    echo "#include \"$2\"" >>"$scratch/tree/$1"
    shift 2
  done
  found=$(faults "$scratch/tree")
  case $message in
  '') [ -z "$found" ] || fail "a right tree: $found" ;;
  *) echo "$found" | grep -q "$message" || fail "expected \"$message\", found \"$found\"" ;;
  esac
}
expect '' tools/a.c mar.h tools/cli/a.c tools/cli/a.h tools/eval/b.c tools/cli/a.h tools/eval/b.c weights/npz.h mar/api/c.c base/d.h
expect 'loop' tools/a.h tools/b.h tools/b.c tools/c.h tools/c.c tools/a.h
expect 'loop' base/a.c base/b.h base/b.c base/a.h
expect 'mar/core/a includes mar/api/b, which is not below it' mar/core/a.c mar/api/b.h
expect 'tools/cli/a includes tools/eval/b, which is not below it' tools/cli/a.c tools/eval/b.h
expect 'vae/a includes eval/b, which is not below it' vae/a.c eval/b.h
expect 'tools/a includes kernels/b, expected public headers' tools/a.c kernels/b.h
expect 'tools/a includes weights/zip, expected public headers' tools/a.c weights/zip.h
expect 'tools/a includes b, expected a path' tools/a.c b.h
expect 'tools/a includes tests/b, which is in none' tools/a.c tests/b.h
