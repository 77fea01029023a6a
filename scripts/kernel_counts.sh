#!/bin/sh
# What a kernel's machine code consists of: its instructions by class, in all, in each function that it calls and in each loop.
# These are counts of instructions as they stand in the code, not of how often they run.
#   scripts/kernel_counts.sh KERNEL [FILE]      # KERNEL as in bench/results/kernel_resources.txt, e.g. 'persistent_chain<4>'
# FILE is a .cu file, or an object of nvcc's; by default the file in kernels/cuda that has the kernel. A .cu file is compiled.
# Needs nvdisasm, in PATH, in $CUDA_PATH/bin or where scripts/cuda.sh puts it. By environment variables:
#   ARCHITECTURE     of the GPU [90a]
#
# global: of device memory, by address or asynchronous. generic: whose address may be any, among them another block's shared
# memory. shared, local: this block's shared memory; stack and spills. mma: matrix products. special: reciprocals,
# roots, exponentials. shuffle: also votes. barrier: of a block or a cluster. fence: of memory, and what it waits for. branch:
# also calls and returns. other: integers, moves, conversions, predicates, constants.
# Loops are those of the control flow: a branch back to a point that all ways to it pass. A line has the address where the loop
# begins, after a dot for each loop around it, and counts all in it.
set -eu

fail() {
    echo "kernel_counts.sh: $*" >&2
    exit 2
}

[ $# = 1 ] || [ $# = 2 ] || {
    echo "usage: scripts/kernel_counts.sh KERNEL [FILE]" >&2
    exit 2
}
kernel=$1
architecture=${ARCHITECTURE:-90a}
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/scripts/cubins.sh"
for folder in "${CUDA_PATH:-/usr/local/cuda}" "$here/build/cuda-toolkit/nvidia/cu13" "$here/build/nvdisasm/nvidia/cu13"; do
    PATH=$PATH:$folder/bin
done
command -v nvdisasm >/dev/null || fail "no nvdisasm, expected in PATH or in \$CUDA_PATH/bin; ./test.sh cuda fetches it"
file=${2:-$(grep -lE "\b${kernel%%<*}\(" "$here"/kernels/cuda/*.cu | head -n 1)}
[ -n "$file" ] || fail "no kernel ${kernel%%<*} in kernels/cuda/*.cu"
[ -f "$file" ] || fail "no file $file"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case $file in
*.cu)
    command -v nvcc >/dev/null || fail "no nvcc to compile $file with, expected in PATH or in \$CUDA_PATH/bin"
    nvcc -std=c++17 -O3 -I"$here" -I"$here/include" -gencode "arch=compute_$architecture,code=sm_$architecture" -c "$file" \
        -o "$work/object" || fail "nvcc could not compile $file"
    object=$work/object
    ;;
*) object=$file ;;
esac
if ! cut_cubins "$object" "$work/cubin" || [ ! -f "$work/cubin.sm_$architecture" ]; then
    fail "$file has no machine code for sm_$architecture"
fi
nvdisasm -c "$work/cubin.sm_$architecture" >"$work/code" || fail "nvdisasm cannot read the machine code of $file"
sed -n 's/^\.text\.\(.*\):$/\1/p' "$work/code" >"$work/sections"
c++filt -p <"$work/sections" | sed 's/^void //' >"$work/kernels"
line=$(grep -nxF -m 1 -- "$kernel" "$work/kernels" | cut -d : -f 1)
[ -n "$line" ] || fail "no kernel $kernel in $file, expected one of: $(LC_ALL=C sort "$work/kernels" | tr '\n' ' ')"
section=$(sed -n "${line}p" "$work/sections")

echo "$kernel for sm_$architecture: instructions in the machine code, by scripts/kernel_counts.sh"
awk -v section=".text.$section" '
    function class(op, full) {
        if (op ~ /^(LDG|STG|LDGSTS|UBLKCP|UTMALDG|UTMASTG)$/) return "global"
        if (op ~ /^(LD|ST|STAS|REDAS)$/) return "generic"
        if (op ~ /^(LDS|STS|LDSM|STSM)$/) return "shared"
        if (op ~ /^(LDL|STL)$/) return "local"
        if (op ~ /(HMMA|IMMA|DMMA|GMMA)$/) return "mma"
        if (op == "MUFU") return full ~ /64H/ ? "fp64" : "special"
        if (op ~ /^D(FMA|ADD|MUL|SETP|MNMX)$/) return "fp64"
        if (op ~ /^F(FMA|FMA32I|ADD|MUL|MUL32I|SETP|SEL|SET|MNMX|CHK|RND|SWZADD)$/) return "fp32"
        if (op ~ /^(SHFL|VOTE|VOTEU|REDUX|MATCH)$/) return "shuffle"
        if (op ~ /^(BAR|UCGABAR_ARV|UCGABAR_WAIT|SYNCS|B2R)$/) return "barrier"
        if (op ~ /^(MEMBAR|ERRBAR|CGAERRBAR|CCTL|FENCE|DEPBAR|LDGDEPBAR)$/) return "fence"
        if (op ~ /^(ATOM|ATOMG|ATOMS|RED|REDG)$/) return "atomic"
        if (op ~ /^(BRA|BRX|BRXU|JMP|JMX|CALL|RET|EXIT|BREAK)$/) return "branch"
        return "other"
    }
    function row(name, i, total) {
        for (i = 1; i <= classes; i++) total += sum[i]
        line = sprintf("%-28s %7d", name, total)
        for (i = 1; i <= classes; i++) line = line sprintf(" %7d", sum[i])
        print line
    }
    function clear(i) { for (i = 1; i <= classes; i++) sum[i] = 0 }
    function edge(from, to) { next_of[from, ++nexts[from]] = to; before[to, ++befores[to]] = from }
    function meet(a, b) { # the closest block that both must pass
        while (a != b) {
            while (rank[a] > rank[b]) a = idom[a]
            while (rank[b] > rank[a]) b = idom[b]
        }
        return a
    }
    BEGIN {
        classes = split("global generic shared local mma fp32 special fp64 shuffle barrier fence atomic branch other", label, " ")
        for (i = 1; i <= classes; i++) number[label[i]] = i
    }
    /^\/\/-----/ { inside = 0 }
    $0 == section ":" { inside = 1; next }
    !inside { next }
    /^[^ \t\/]+:$/ { # a label: of a function, if it does not begin with .L_
        name = substr($0, 1, length($0) - 1)
        label_at[name] = n + 1
        if (name !~ /^\.L_/) functions[++function_count] = name
        next
    }
    match($0, /\/\*[0-9a-f]+\*\/ +/) {
        text = substr($0, RSTART + RLENGTH)
        gsub(/^[{] */, "", text)
        if (text ~ /^NOP/) next
        guarded[++n] = sub(/^@!?U?P[0-9T]+ +/, "", text)
        address[n] = substr($0, RSTART + 2); sub(/\*.*/, "", address[n])
        full = text; sub(/[ ;].*/, "", full)
        op = full; sub(/\..*/, "", op)
        kind[n] = number[class(op, full)]
        if (op == "BRA" || op == "BRX" || op == "JMP" || op == "RET" || op == "EXIT") ends[n] = op
        if (op == "BRA" && match(text, /`\(\.L_[^)]*\)/)) target[n] = substr(text, RSTART + 2, RLENGTH - 3)
        if (op == "BRA" && text !~ /^BRA[A-Z.]* `/) guarded[n] = 1 # a condition as an operand
    }
    END {
        if (!n) exit 1
        head = sprintf("%-28s %7s", "", "all")
        for (i = 1; i <= classes; i++) head = head sprintf(" %7s", label[i])
        print head
        clear(); for (i = 1; i <= n; i++) sum[kind[i]]++
        row("kernel")
        functions[function_count + 1] = ""; label_at[""] = n + 1
        for (f = 2; f <= function_count; f++) { # the first is the kernel
            clear(); for (i = label_at[functions[f]]; i < label_at[functions[f + 1]]; i++) sum[kind[i]]++
            name = functions[f]; sub(/.*\$/, "", name)
            row(substr(name, 1, 28))
        }
        last = function_count > 1 ? label_at[functions[2]] - 1 : n

        # Blocks of the body, and the ways between them. What is waited for (BSYNC) is taken to be what follows.
        for (name in label_at) starts[label_at[name]] = 1
        for (i = 1; i <= n; i++) if (i in ends) starts[i + 1] = 1
        starts[1] = 1
        for (i = 1; i <= last; i++) { if (i in starts) begin[++blocks] = i; block[i] = blocks }
        begin[blocks + 1] = last + 1
        for (b = 1; b <= blocks; b++) {
            i = begin[b + 1] - 1
            if (i in target && label_at[target[i]] <= last) edge(b, block[label_at[target[i]]])
            if ((!(i in ends) || guarded[i]) && b < blocks) edge(b, b + 1)
        }
        # Reverse postorder from the first, then dominators (Cooper, Harvey, Kennedy).
        depth = 1; stack[1] = 1; seen[1] = 1
        while (depth) {
            b = stack[depth]
            if (step[b] < nexts[b]) {
                s = next_of[b, ++step[b]]
                if (!(s in seen)) { seen[s] = 1; stack[++depth] = s }
            } else { post[++reached] = b; depth-- }
        }
        for (i = 1; i <= reached; i++) rank[post[i]] = reached - i + 1
        idom[1] = 1
        do {
            changed = 0
            for (i = reached - 1; i >= 1; i--) {
                b = post[i]; new = 0
                for (j = 1; j <= befores[b]; j++) {
                    p = before[b, j]
                    if (p in idom) new = new ? meet(p, new) : p
                }
                if (idom[b] != new) { idom[b] = new; changed = 1 }
            }
        } while (changed)
        # A loop: from a block back to one that all ways to it pass; those with one beginning are one.
        for (h = 1; h <= blocks; h++) {
            if (!(h in idom)) continue
            split("", body); todo_count = 0
            for (j = 1; j <= befores[h]; j++) {
                p = before[h, j]
                if (!(p in idom)) continue
                d = p; while (d != h && rank[d] > rank[h]) d = idom[d]
                if (d == h && !(p in body)) { body[p] = 1; todo[++todo_count] = p }
            }
            if (!todo_count) continue
            body[h] = 1
            while (todo_count) {
                b = todo[todo_count--]
                if (b == h) continue
                for (j = 1; j <= befores[b]; j++) {
                    p = before[b, j]
                    if ((p in idom) && !(p in body)) { body[p] = 1; todo[++todo_count] = p }
                }
            }
            clear()
            for (b in body) { within[b]++; for (i = begin[b]; i < begin[b + 1]; i++) sum[kind[i]]++ }
            loop[++loops] = h
            for (i = 1; i <= classes; i++) sums[h, i] = sum[i]
        }
        for (l = 1; l <= loops; l++) {
            h = loop[l]; name = "loop "
            for (i = 1; i < within[h]; i++) name = name "."
            for (i = 1; i <= classes; i++) sum[i] = sums[h, i]
            row(name address[begin[h]])
        }
    }' "$work/code" || fail "nvdisasm shows no instruction of $kernel"
