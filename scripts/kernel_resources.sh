#!/bin/sh
# Registers, shared memory, stack and spills of every kernel of kernels/cuda, as ptxas states them for sm_90a; no GPU is
# needed. Fails if a kernel of persistent.cu or speculation.cu spills: they must keep their operands in registers.
#   scripts/kernel_resources.sh [NVCC [LOGS]] >bench/results/kernel_resources_sm90.txt
# With LOGS, a folder where <name>.cu.o.log has what nvcc said with -Xptxas -v, as the preset cuda keeps it in
# build/cuda/cuda/kernels/cuda, nothing is compiled.
set -eu
cd "$(dirname "$0")/.."

logs=${2:-}
nvcc=${1:-$(command -v nvcc || echo "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc")}
[ -x "$nvcc" ] || {
    echo "kernel_resources.sh: no nvcc at $nvcc, expected in PATH, in \$CUDA_PATH/bin or as the argument" >&2
    exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for source in kernels/cuda/*.cu; do
    if [ -n "$logs" ]; then
        log=$logs/${source##*/}.o.log
    else
        log=$work/log
        "$nvcc" -std=c++17 -O3 -I. -Iinclude -gencode arch=compute_90a,code=sm_90a -Xptxas -v -c "$source" \
            -o "$work/object" 2>"$log" || {
            cat "$log" >&2
            exit 2
        }
    fi
    grep -q "for 'sm_90a'" "$log" || ! grep -q '__global__' "$source" || {
        echo "kernel_resources.sh: $log has no kernel for sm_90a" >&2
        exit 2
    }
    # Functions that a kernel calls are listed behind it: theirs count as the kernel's.
    awk -v file="${source##*/}" '
        function row() { if (name) print name, file, registers, shared, stack, spill }
        /Compiling entry function/ {
            row()
            split($0, part, "\047")
            name = part[4] == "sm_90a" ? part[2] : ""
            stack = spill = shared = 0
        }
        /bytes stack frame/ { if ($1 > stack) stack = $1; spill += $5 + $9 }
        /Used [0-9]+ registers/ {
            registers = $0; sub(/.*Used /, "", registers); registers += 0
            if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
        }
        END { row() }' "$log" >>"$work/rows"
done

c++filt -p <"$work/rows" | sed 's/^void //' |
    awk '{ n = NF; name = $1; for (i = 2; i <= n - 5; i++) name = name " " $i
           printf "%-16s %-72s %9d %7d %6d %6d\n", $(n - 4), name, $(n - 3), $(n - 2), $(n - 1), $n }' |
    LC_ALL=C sort >"$work/table"
"$nvcc" --version | sed -n 's/.*release [0-9.]*, V\([0-9.]*\).*/nvcc \1 for sm_90a, by scripts\/kernel_resources.sh/p'
echo 'Registers of a thread; bytes of static shared memory (what a launch asks for besides is not known to ptxas, see its'
echo 'cuda_launch), of stack, and of spill stores and loads.'
echo
printf '%-16s %-72s %9s %7s %6s %6s\n' file kernel registers shared stack spill
cat "$work/table"
awk '$1 ~ /^(persistent|speculation)/ && $NF > 0 { print "kernel_resources.sh: a chain kernel spills: " $0 >"/dev/stderr"; bad = 1 }
     END { exit bad }' "$work/table"
