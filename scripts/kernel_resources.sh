#!/bin/sh
# Registers, shared memory, stack, spills and bytes of machine code of every kernel of kernels/cuda, for each of
# ARCHITECTURES; no GPU is needed. The machine code is what the kernel pulls in: functions that it calls lie in its section.
# Fails if attend_warpgroups or a kernel of decode.cu, groups*.cu, persistent.cu, product.cu, resident.cu, speculation.cu or streamed.cu spills on any
# of them, for they must keep their operands in registers, or if its machine code has MAX_BYTES or more, for it must stay in
# the instruction cache. For 120, where the same code takes a tenth more bytes and the size of that cache is not published,
# the limit is an eighth higher. For groups.cu, of whose kernels a block runs a third, it is a quarter higher, and doubled for
# groups_speculation.cu, half. For decode.cu it is 8 KB higher: its kernels have more outside of the loop over the layers.
#   scripts/kernel_resources.sh [NVCC [OBJECTS]] >bench/results/kernel_resources.txt
# With OBJECTS, a folder with <name>.cu.o and, in <name>.cu.o.log, what nvcc said with -Xptxas -v, as the preset cuda keeps
# them in build/cuda/cuda/kernels/cuda, nothing is compiled. By environment variables:
#   ARCHITECTURES    of the GPUs ["80 86 89 90a 100 120"]
#   MAX_BYTES        of machine code of these kernels [131072]
set -eu

fail() {
    echo "kernel_resources.sh: $*" >&2
    exit 2
}

objects=${2:-}
nvcc=${1:-$(command -v nvcc || echo "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc")}
architectures=${ARCHITECTURES:-80 86 89 90a 100 120}
max_bytes=${MAX_BYTES:-131072}
[ -x "$nvcc" ] || fail "no nvcc at $nvcc, expected in PATH, in \$CUDA_PATH/bin or as the argument"
command -v readelf >/dev/null || fail "no readelf, expected in PATH (Debian: binutils)"
cd "$(dirname "$0")/.."
. scripts/cubins.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for source in kernels/cuda/*.cu; do
    file=${source##*/}
    object=${objects:-$work}/$file.o
    if [ -z "$objects" ]; then
        set --
        for a in $architectures; do set -- "$@" -gencode "arch=compute_$a,code=sm_$a"; done
        "$nvcc" -std=c++17 -O3 -I. -Iinclude "$@" -Xptxas -v -c "$source" -o "$object" >"$object.log" 2>&1 || {
            cat "$object.log" >&2
            exit 2
        }
    fi
    grep -q '__global__' "$source" || continue
    # sm kernel bytes
    rm -f "$work"/cubin.*
    cut_cubins "$object" "$work/cubin" || fail "$object has no machine code"
    for cubin in "$work"/cubin.sm_*; do
        readelf -SW "$cubin" 2>/dev/null | tr -d '[]' | awk -v sm="${cubin##*.}" '
            $2 ~ /^\.text\./ { print sm, substr($2, 7), $6 }' |
            while read -r sm name bytes; do echo "$sm $name $((0x$bytes))"; done
    done >"$work/bytes"
    # Functions that a kernel calls are listed behind it: theirs count as the kernel's.
    awk -v file="$file" -v wanted="$architectures" '
        function row() {
            if (name && (sm in want)) print name, file, sm, registers, shared, stack, spill, bytes[sm, name] + 0
        }
        BEGIN { words = split(wanted, word, " "); for (i = 1; i <= words; i++) want["sm_" word[i]] = 1 }
        NR == FNR { bytes[$1, $2] = $3; next }
        /Compiling entry function/ {
            row()
            split($0, part, "\047")
            name = part[2]; sm = part[4]
            stack = spill = shared = 0
        }
        /bytes stack frame/ { if ($1 > stack) stack = $1; spill += $5 + $9 }
        /Used [0-9]+ registers/ {
            registers = $0; sub(/.*Used /, "", registers); registers += 0
            if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
        }
        END { row() }' "$work/bytes" "$object.log" >"$work/part"
    for a in $architectures; do
        grep -q " sm_$a " "$work/part" || fail "$object.log has no kernel for sm_$a"
    done
    awk '$NF == 0 { print "kernel_resources.sh: no machine code of " $1 " for " $3 >"/dev/stderr"; bad = 2 }
         END { exit bad }' "$work/part" || exit 2
    cat "$work/part" >>"$work/rows"
done

c++filt -p <"$work/rows" | sed 's/^void //' |
    awk '{ n = NF; name = $1; for (i = 2; i <= n - 7; i++) name = name " " $i
           printf "%-16s %-56s %-7s %9d %7d %6d %6d %7d\n", $(n - 6), name, $(n - 5), $(n - 4), $(n - 3), $(n - 2), $(n - 1),
                  $n }' |
    LC_ALL=C sort >"$work/table"
version=$("$nvcc" --version | sed -n 's/.*release [0-9.]*, V\([0-9.]*\).*/\1/p')
echo "nvcc $version for $(for a in $architectures; do printf 'sm_%s ' "$a"; done)by scripts/kernel_resources.sh"
echo 'Registers of a thread; bytes of static shared memory (what a launch asks for besides is not known to ptxas, see its'
echo 'cuda_launch), of stack, of spill stores and loads, and of machine code.'
echo
printf '%-16s %-56s %-7s %9s %7s %6s %6s %7s\n' file kernel for registers shared stack spill code
cat "$work/table"
awk -v max="$max_bytes" '
    $1 !~ /^(decode|groups|persistent|product|resident|speculation|streamed)/ && $2 != "attend_warpgroups" { next }
    { gsub(/ +/, " ") }
    $(NF - 1) > 0 { print "kernel_resources.sh: a kernel spills that must not: " $0 >"/dev/stderr"; bad = 1 }
    { limit = $(NF - 5) == "sm_120" ? max * 9 / 8 : max }
    $1 ~ /^groups/ { limit = $1 ~ /^groups_/ ? max * 2 : max * 5 / 4 }
    $1 ~ /^decode/ { limit = max + 8192 }
    $NF >= limit {
        print "kernel_resources.sh: the machine code has " $NF " bytes, expected less than " limit ": " $0 >"/dev/stderr"
        bad = 1
    }
    END { exit bad }' "$work/table"
