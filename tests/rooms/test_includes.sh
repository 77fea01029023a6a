#!/bin/sh
# Which file may include which. A pair X.c and X.h (or .cu, .cuh) counts as one file:
#
# - No pair includes itself by way of others.
# - A folder includes those below it, in this order: base, kernels, weights, specdec, eval and vae and diffusion and llamagen, mar,
#   tools. eval, vae, diffusion and llamagen do not include one another. tools includes mar.h, headers of base and eval, and weights/npz.h.
#
# usage: test_includes.sh SOURCE
set -eu
folders='base kernels weights specdec diffusion llamagen eval vae mar tools'

# Pairs that include each other, but not as files: the header that one half includes does not include that half.
#   kernels/cuda/persistent_layers is the second half of one CUDA kernel, which persistent.cu includes.
known='kernels/cuda/persistent kernels/cuda/persistent_layers'

# Prints "FROM TO" for every include in the folders of $1, both without their endings.
includes() {
  (cd "$1" && find $folders -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
    -exec grep -HE '^ *# *include +"' {} +) |
    awk -F'[:"]' '{ from = $1; to = $3; sub(/\.[a-z]+$/, "", from); sub(/\.[a-z]+$/, "", to)
                    if (to !~ "/" && to != "mar") {
                      print from " includes " to ", expected a path from the root" > "/dev/stderr"
                      bad = 1
                    }
                    if (from != to) print from, to }
                  END { exit bad }'
}

# Prints what is wrong with the tree $1; nothing if it is right.
faults() {
  list=$(includes "$1" 2>&1) || { printf '%s\n' "$list" | grep ', expected'; return; }
  list=$(printf '%s\n' "$list" | sort -u)
  printf '%s\n' "$list" | grep -vxF "$known" | tsort 2>&1 >/dev/null | sed 's/^tsort: //'
  printf '%s\n' "$list" | awk '
    BEGIN { split("base kernels weights specdec eval mar tools", order, " ")
            for (i in order) rank[order[i]] = i
            rank["vae"] = rank["diffusion"] = rank["llamagen"] = rank["eval"] }
    { from = $1; to = $2; sub("/.*", "", from); sub("/.*", "", to) }
    $2 == "mar" || from == to { next }
    !(to in rank) { print $1 " includes " $2 ", which is in none of the folders"; next }
    rank[to] >= rank[from] { print $1 " includes " $2 ", which is not below it" }
    from == "tools" && to != "base" && to != "eval" && $2 != "weights/npz" {
      print $1 " includes " $2 ", expected mar.h, base/*.h, eval/*.h, weights/npz.h or tools/*.h" }'
}

fail() { echo "$*" >&2; exit 1; }

found=$(faults "$1")
[ -z "$found" ] || fail "$found"

# What the check finds: each tree below has one fault.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
expect() { # MESSAGE FILE INCLUDED...
  message=$1
  shift
  rm -rf "$scratch/tree"
  for folder in $folders; do mkdir -p "$scratch/tree/$folder"; done
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
expect '' tools/a.c mar.h tools/a.c tools/a.h tools/b.c tools/a.h tools/b.c weights/npz.h tools/b.c base/d.h mar/c.c base/d.h
expect 'loop' tools/a.h tools/b.h tools/b.c tools/c.h tools/c.c tools/a.h
expect 'loop' base/a.c base/b.h base/b.c base/a.h
expect 'mar/a includes tools/b, which is not below it' mar/a.c tools/b.h
expect 'vae/a includes eval/b, which is not below it' vae/a.c eval/b.h
expect 'tools/a includes kernels/b, expected mar.h' tools/a.c kernels/b.h
expect 'tools/a includes weights/zip, expected mar.h' tools/a.c weights/zip.h
expect 'tools/a includes b, expected a path' tools/a.c b.h
expect 'tools/a includes tests/b, which is in none' tools/a.c tests/b.h
