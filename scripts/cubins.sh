# Sourced: `cut_cubins OBJECT PREFIX` writes the machine code in an object that nvcc made, one ELF file for each GPU
# architecture, to PREFIX.sm_<architecture>; fails if there is none. The files lie in the object as they are (those
# that cuobjdump, which not every toolkit has, would list), and what follows one of them does not disturb its readers.
cut_cubins() {
    cut_any=1
    for cut_at in $(LC_ALL=C grep -abo -P '\x7fELF\x02\x01\x01' "$1" | cut -d : -f 1); do
        [ "$cut_at" != 0 ] || continue # the object itself
        tail -c +$((cut_at + 1)) "$1" >"$2.part"
        # ptxas notes its options, of which the first in the file are those of this piece.
        cut_sm=$(LC_ALL=C grep -a -o -m 1 -E -e '-arch sm_[0-9]+[a-z]*' "$2.part" | head -n 1)
        [ -n "$cut_sm" ] || return 1
        mv "$2.part" "$2.${cut_sm#-arch }"
        cut_any=0
    done
    return $cut_any
}
