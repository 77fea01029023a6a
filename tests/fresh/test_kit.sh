#!/usr/bin/env bash
# Tests the CPU part of the kit for machines without a package registry; it needs no nvcc. The test runs on a bare
# Debian 12 with compilers, cmake and ninja, and without network. Called by ctest, or by hand as root:
#   tests/fresh/test_kit.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
name=kit
. "$(dirname "$0")/../../scripts/root.sh"
if [ "$1" != --inside ]; then in_namespaces "$0" "$1" "$2" && exit 0; fi

source_dir=$2 work=$3 clone=/root/libmar kit="/root/the kit"
make_root
make_clone
in_root=(chroot "$root" env -i "${variables[@]}" sh -c)
offline=(unshare --net chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin)
. "$root$clone/scripts/packages.sh"

# says WHAT COMMAND...: checks that the command fails with one line that contains WHAT
says() {
    local expected=$1 output status=0
    shift
    output=$("$@" 2>&1) || status=$?
    [ "$status" != 0 ] || fail "no error, expected '$expected': $output"
    case $output in *$'\n'*) fail "more than a line: $output" ;; esac
    case $output in *"$expected"*) ;; *) fail "'$output', expected '$expected'" ;; esac
}

echo "== compilers, cmake and ninja"
step 600 "${in_root[@]}" "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install \
    $compiler_packages $test_compiler_packages" >"$work/log" 2>&1 || {
    tail -n 20 "$work/log"
    fail "apt-get install"
}

echo "== the kit"
"${in_root[@]}" "cd / && mkdir elsewhere && '$clone/scripts/gpu_kit.sh' '$kit'" || fail "gpu_kit.sh"
(cd "$root$kit" && ls -l --time-style=full-iso) >"$work/first"
touch "$root$kit/other.deb" # does not belong there
"${in_root[@]}" "$clone/scripts/gpu_kit.sh '$kit'" || fail "gpu_kit.sh again"
(cd "$root$kit" && ls -l --time-style=full-iso) >"$work/second"
diff <(grep '\.deb$' "$work/first") <(grep '\.deb$' "$work/second") || fail "a second run changed the packages"
[ "$(du -sm "$root$kit" | cut -f 1)" -le 17 ] || fail "the kit is larger than 17 MB: $(du -sm "$root$kit")"
mkdir "$root/unknown"
cp "$root$clone/scripts/"* "$root/unknown"
sed -i 's/libcjson-dev/libno-such-dev/' "$root/unknown/packages.sh"
says "apt does not know the package libno-such-dev" "${in_root[@]}" "/unknown/gpu_kit.sh /kit"
for package in $packages $test_packages; do # nothing was installed
    case " $compiler_packages $test_compiler_packages " in *" $package "*) continue ;; esac
    ! "${in_root[@]}" "dpkg -s $package" >/dev/null 2>&1 || fail "$package is installed"
done

echo "== env.sh"
mkdir "$root/only"
ln -s /usr/bin/cc "$root/only/cc"
says "no cmake in PATH" "${offline[@]}" bash -c "PATH=/only; . '$kit/env.sh'"
cp -r "$root$kit" "$root/runs"
touch "$root/runs/programs" # they need no compiler
ln -sf /usr/bin/* "$root/only"
rm "$root/only/cmake"
"${offline[@]}" bash -c "set -eu; PATH=/only; . /runs/env.sh" 2>"$work/log" || fail "env.sh without cmake: $(cat "$work/log")"
grep -q "no cmake in PATH: only the kit's programs run here" "$work/log" || fail "env.sh does not say that cmake is missing"
[ -e "$root/runs/unpacked/sums" ] || fail "env.sh without cmake did not unpack"
says "not a kit" "${offline[@]}" sh -c ". '$kit/env.sh'"
cp -r "$root$kit" "$root/damaged"
truncate -s -1 "$root/damaged/"libcjson1_*.deb
says "a package in /damaged is missing or damaged" "${offline[@]}" bash -c "set -eu; . /damaged/env.sh"
cp -r "$root$kit" "$root/foreign"
echo mips >"$root/foreign/architecture"
says "the kit is for mips, this machine is" "${offline[@]}" bash -c ". /foreign/env.sh"
# The kit's name has a space, so env.sh unpacks it in /tmp. It must not use another user's folder or follow a link.
own=$root/tmp/libmar-kit-0
mkdir "$own"
chown 1 "$own"
says "/tmp/libmar-kit-0 is not a folder of this user" "${offline[@]}" bash -c ". '$kit/env.sh'"
[ -z "$(ls -A "$own")" ] || fail "env.sh has written into another user's folder"
rmdir "$own"
ln -s /elsewhere "$own"
says "/tmp/libmar-kit-0 is not a folder of this user" "${offline[@]}" bash -c ". '$kit/env.sh'"
rm "$own"
says "cannot make the folder /none/libmar-kit-0" "${offline[@]}" bash -c "TMPDIR=/none; . '$kit/env.sh'"
# env.sh must work from another folder, in any sh and in bash, and in a path with or without a space. Sourcing it twice
# must equal sourcing it once.
source_it=". '$kit/env.sh' >/dev/null 2>/env.log"
once=$("${offline[@]}" sh -c "set -eu; cd /elsewhere; kit='$kit'; $source_it; export -p") ||
    fail "env.sh in sh: $(cat "$root/env.log")"
twice=$("${offline[@]}" sh -c "set -eu; cd /elsewhere; kit='$kit'; $source_it; $source_it; export -p") || fail "env.sh twice"
[ "$(stat -c %a "$own")" = 700 ] || fail "others can read $own"
[ "$once" = "$twice" ] || fail "env.sh twice is not env.sh once: $twice"
"${offline[@]}" bash -c "set -eu; cp -r '$kit' /plain; cd /elsewhere; . ../plain/env.sh" || fail "env.sh in bash"
[ -e "$root/plain/unpacked/works" ] || fail "env.sh did not unpack into its folder"

echo "== without network: configure, build, a test, an image"
step 900 "${offline[@]}" bash -c "set -eu; . '$kit/env.sh'; cd $clone
    cmake --preset release -DMAR_TESTS=ON && cmake --build --preset release --target mar_command test_kernels_cpu &&
        build/release/tests/test_kernels_cpu && build/release/mar generate --class 1 --out /image" >"$work/log" 2>&1 || {
    tail -n 40 "$work/log"
    fail "the build with the kit"
}
grep -q 'PASSED' "$work/log" || fail "test_kernels_cpu ran no test"
[ "$(head -c 4 "$root/image/000000.png" | tail -c 3)" = PNG ] || fail "no picture"
echo "PASSED"
