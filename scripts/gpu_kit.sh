#!/bin/sh
# Makes a folder with which a machine that reaches no package registry, but has a compiler, cmake, ninja and nvcc, builds
# libmar and runs its tests for GPUs and its benchmarks.
#   scripts/gpu_kit.sh DIR     here, on Debian 12: the packages that libmar and its tests are built from, and env.sh, 15 MB
#                              With nvcc, also the programs that scripts/gpu_hour.sh runs, 6.5 MB: built for the GPU
#                              $CUDAARCHS (90a), of this tree's sources, into build/gpu-programs first.
#   . DIR/env.sh               there, in bash: unpacks them beside the system and lets compiler, linker and CMake find them
# The packages are those of scripts/packages.sh, with what they need, but for the compilers and what every compiler
# brings. Packages that DIR has already are not fetched again; those that do not belong in it are removed.
set -eu

fail() {
    echo "gpu_kit.sh: $*" >&2
    exit 1
}

[ $# = 1 ] && [ -n "$1" ] || {
    echo "usage: scripts/gpu_kit.sh DIR" >&2
    exit 2
}
scripts=$(cd "$(dirname "$0")" && pwd)
. "$scripts/packages.sh"
. "$scripts/cuda.sh"
. "$scripts/gpu_programs.sh"
for command in apt-cache apt-get dpkg-deb; do
    command -v $command >/dev/null 2>&1 || fail "no $command, expected Debian 12, whose packages the kit is made of"
done
mkdir -p -- "$1" || fail "cannot make the folder $1"
dir=$(cd -- "$1" && pwd)

# What every compiler brings: the C library, the compiler's own and zlib, which it is linked with. And what nothing here is
# built with or linked to: static LAPACK and BLAS, for whose libraries env.sh makes links, and other packages' companions.
without="$compiler_packages $test_compiler_packages libc6 libgcc-s1 libstdc++6 zlib1g gcc-12-base liblapack-dev libblas-dev \
libpcre2-16-0 libpcre2-32-0 libpcre2-posix3 libgmpxx4ldbl libgnutlsxx30 libgnutls-dane0 libgnutls-openssl27"

# The packages and what they need, of alternatives, and of those that provide what has no package, the first; `?` before
# the name of one that apt does not know.
# shellcheck disable=SC2086  # the lists are words
kit=$(LC_ALL=C apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances $packages $test_packages 2>/dev/null |
    awk -v start="$packages $test_packages liblapack3" -v without="$without" '
        function take(name) { if (name && !(name in taken)) { taken[name] = 1; list[++n] = name } }
        /^[^ ]/ { package = $1; known[package] = 1; alternative = 0 }
        /Depends: / { if (!alternative) { if (/Depends: </) virtual = 1; else needs[package] = needs[package] " " $2 }
                      alternative = /[|]Depends: / }
        /^    / { if (virtual) needs[package] = needs[package] " " $1; virtual = 0 }
        END {
            words = split(without, word, " ")
            for (i = 1; i <= words; i++) taken[word[i]] = 1
            words = split(start, word, " ")
            for (i = 1; i <= words; i++) take(word[i])
            for (i = 1; i <= n; i++) {
                print (list[i] in known ? "" : "?") list[i]
                words = split(needs[list[i]], word, " ")
                for (j = 1; j <= words; j++) take(word[j])
            }
        }')
case "$kit" in *"?"*)
    unknown=$(echo "$kit" | sed -n 's/^?//p' | head -n 1)
    fail "apt does not know the package $unknown, expected Debian 12's lists (as root: apt-get update)"
    ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What apt would fetch into an empty folder: its file names and their sums.
# shellcheck disable=SC2086
(cd "$work" && apt-get -qq --print-uris download $kit 2>log) |
    sed -n "s/^'[^']*' \([^ ]*\) [0-9]* SHA256:\(.*\)/\2  \1/p" >"$work/sums"
# shellcheck disable=SC2086
[ "$(wc -l <"$work/sums")" = "$(echo "$kit" | wc -l)" ] ||
    fail "apt cannot fetch all of" $kit "$(tail -n 1 "$work/log")"

cd -- "$dir"
for file in *.deb; do # what does not belong here, or came only in part
    [ -e "$file" ] || continue
    grep -F -- "  $file" "$work/sums" | sha256sum -c --status 2>/dev/null || rm -f -- "$file"
done
# shellcheck disable=SC2086
apt-get -q download $kit >"$work/log" 2>&1 || fail "$(grep '^E: ' "$work/log" | head -n 1)"
sha256sum -c --quiet "$work/sums" || fail "a package in $dir is not what apt's lists say; remove it and run this again"
cp "$work/sums" sums
dpkg --print-architecture >architecture
cp "$scripts/gpu_kit_env.sh" env.sh

# The programs. libwebp is not in the kit. They are alike, so xz with a large dictionary makes a twentieth of them.
rm -f programs programs.tar.xz
cd "$scripts/.."
if have_cuda; then
    architecture=${CUDAARCHS:-90a}
    built=build/gpu-programs
    programs=$work/programs
    mkdir -p "$programs/tests"
    # shellcheck disable=SC2046  # the targets are words
    { cmake --preset cuda -B "$built" -DMAR_TESTS=ON -DMAR_WEBP=OFF "-DMAR_CUDA_ARCHITECTURES=$architecture" &&
        cmake --build "$built" --target $(gpu_targets) && gpu_compile "$architecture" "$programs"; } >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        fail "building the programs for sm_$architecture"
    }
    cp "$built/mar" "$built"/libmar.so "$programs"
    find "$built/tests" -name 'test_gpu_*' -type f -perm -u+x -exec cp {} "$programs/tests" \;
    find "$programs" -type f -exec strip {} +
    tar -C "$programs" -cf - . | xz --lzma2=preset=3,dict=96MiB >"$dir/programs.tar.xz"
    echo "$architecture $(gpu_sources)" >"$dir/programs"
fi
cd "$dir"
rm -rf unpacked # by env.sh, for this machine
echo "$(wc -l <sums) packages, $(du -sk . | awk '{ printf "%.0f", $1 / 1024 }') MB in $dir"
