#!/usr/bin/env bash
# The README's two commands on a bare Debian 12. Called by ctest, or by hand as root:
#   tests/fresh/test_fresh.sh SOURCE_DIR BUILD_DIR [ARGUMENTS]
# ARGUMENTS are the second command's, by default '--quick release fuzz cuda'; '' is all of it, as the README states it.
#
# debootstrap makes the root (minbase) in BUILD_DIR/fresh. In a clone there, the first command must make demo.png without
# installing a C++ compiler, make or anything of the tests. Then the second command with ARGUMENTS must pass, `install`
# among its tests. By default that installs everything (1 GB of CUDA toolkit is fetched), builds three presets and runs their
# tests labelled quick, and asan and tsan are configured: four to six minutes on two cores.
#
# Both are read from the README. The clone is of HEAD, with what is changed but not committed in tracked files applied to
# it; files that git does not know are not in it, as they are in nobody's clone. It is made from outside, so that the root
# has less than the README asks for: no git.
#
# The root reaches the registries as this machine does: the mirror that apt uses for bookworm here (or else debootstrap's
# own), apt's settings of proxies and checks, resolv.conf and hosts, the certificates, the proxy variables, pip's settings.
#
# It runs in mount and process namespaces of its own, with /proc and /dev/pts in the root: they end with this script however
# that ends, and with them its processes and mounts. The folder is removed then, or, after SIGKILL, when the test starts again.
#
# Exit status 77, which ctest lists as skipped: this machine cannot make such a root. The line SKIPPED says why; test.sh
# shows it.
set -euo pipefail

skip() {
    echo "SKIPPED: fresh: $*"
    exit 77
}

fail() {
    echo "FAILED: $*"
    exit 1
}

# --- outside: is everything here that is needed? Then the rest in its namespaces, and cleaning up -----------------------
if [ "$1" != --inside ]; then
    source_dir=$(cd "$1" && pwd)
    mkdir -p "$2"
    work=$(cd "$2" && pwd)/fresh
    [ -z "${MAR_FRESH:-}" ] || skip "this is the bare Debian already"
    [ "$(id -u)" = 0 ] || skip "not root, who alone can make a Debian root"
    for command in debootstrap git unshare setpriv; do
        command -v $command >/dev/null || skip "$command is not installed"
    done
    unshare --mount --pid --fork --mount-proc true 2>/dev/null || skip "root may not make namespaces on this machine"

    child=
    finish() {
        trap '' HUP INT TERM
        if [ -n "$child" ]; then
            kill -KILL "$child" 2>/dev/null || :
            wait "$child" 2>/dev/null || :
        fi
        for _ in 1 2 3 4 5; do # what was killed may take a moment to be gone
            if rm -rf --one-file-system "$work" 2>/dev/null; then break; fi
            sleep 1
        done
    }
    trap finish EXIT
    trap 'exit 130' HUP INT TERM
    rm -rf --one-file-system "$work"
    mkdir "$work"
    printf '[safe]\n\tdirectory = *\n' >"$work/gitconfig" # whoever owns the tree, and nobody's own settings of git
    export GIT_CONFIG_GLOBAL="$work/gitconfig" GIT_OPTIONAL_LOCKS=0
    git -C "$source_dir" rev-parse -q --verify HEAD >/dev/null 2>&1 || skip "$source_dir is not a checkout of git"
    setpriv --pdeathsig KILL unshare --mount --pid --fork --mount-proc --kill-child \
        bash "$0" --inside "$source_dir" "$work" "${3---quick release fuzz cuda}" </dev/null &
    child=$!
    status=0
    wait "$child" || status=$?
    child=
    exit "$status"
fi

# --- inside -------------------------------------------------------------------------------------------------------------
source_dir=$2 work=$3 arguments=$4
root=$work/root clone=/root/libmar

# step SECONDS COMMAND...: within that time, or the test fails; says how long it took
step() {
    local limit=$1 started=$SECONDS status=0
    shift
    timeout --kill-after=10 "$limit" "$@" || status=$?
    echo "== $((SECONDS - started)) s"
    if [ "$status" = 124 ]; then echo "stopped after $limit s"; fi
    return "$status"
}

mirror=
if command -v apt-get >/dev/null; then
    mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        sed -n 's/^\(https\{0,1\}:[^ ]*\) bookworm main$/\1/p' | sed -n 1p)
    proxy=
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export http_proxy="${http_proxy:-$proxy}"; fi
fi
echo "== a bare Debian 12 from ${mirror:-the default mirror}"
step 600 debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"} >"$work/log" 2>&1 || {
    tail -n 5 "$work/log"
    if grep -qE 'Failed getting release file|Invalid Release file' "$work/log"; then skip "no registry can be reached"; fi
    if grep -q 'noexec or nodev' "$work/log"; then skip "$work is mounted noexec or nodev"; fi
    fail "debootstrap"
}
tail -n 1 "$work/log"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts" # a test wants a terminal

for file in /etc/hosts /etc/resolv.conf /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" \
    "${PIP_CONFIG_FILE:-}" "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" "${REQUESTS_CA_BUNDLE:-}" "${CURL_CA_BUNDLE:-}" \
    /etc/ssl/certs/ca-certificates.crt /usr/local/share/ca-certificates/*; do
    if [ ! -f "$file" ]; then continue; fi
    copy=$root/${file/#"$HOME"\//root/}
    mkdir -p "$(dirname "$copy")"
    cp -L "$file" "$copy"
done
{
    apt-config dump 2>/dev/null | grep -E '^Acquire::(https?::|Check-|ForceIPv)' || :
    echo 'Acquire::Retries "3";'
} >"$root/etc/apt/apt.conf.d/90reach"
# Of this machine's variables only those that tell the way to a registry. Threads that wait do not spin: other tests run
# beside this one.
variables=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin MAR_FRESH=yes OMP_WAIT_POLICY=passive)
while IFS= read -r name; do
    variables+=("$name=${!name}")
done < <(compgen -e | grep -E '^(PIP_.*|.*_proxy|.*_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE)$')
in_clone=(chroot "$root" env -i "${variables[@]}" sh -c "cd $clone && exec sh -c \"\$1\"" sh)

git clone -q --depth 1 "file://$source_dir" "$root$clone"
git -C "$source_dir" diff --binary --no-ext-diff --no-textconv --no-color HEAD >"$work/uncommitted"
if [ -s "$work/uncommitted" ]; then
    echo "With what is not committed:"
    git -C "$source_dir" diff --stat --no-color HEAD
    git -C "$root$clone" apply --whitespace=nowarn "$work/uncommitted"
fi
git -C "$source_dir" ls-files --others --exclude-standard | sed 's/^/git does not know, so this is not in the clone: /'

# readme_command N: of the section Start, without its comment
readme_command() {
    sed -n '/^## Start$/,/^## /{/^```sh$/,/^```$/{/^```/!p}}' "$root$clone/README.md" | sed -n "$1{s/ *#.*//;p}"
}
first=$(readme_command 1) second=$(readme_command 2)
[ -n "$first" ] && [ -n "$second" ] || fail "no two commands in the README's section Start"

echo "== the first command: $first"
step 600 "${in_clone[@]}" "$first" || fail "$first"
[ "$(head -c 4 "$root$clone/demo.png" | tail -c 3)" = PNG ] || fail "$first left no picture demo.png"
for command in c++ g++ clang make nvcc; do
    ! "${in_clone[@]}" "command -v $command" || fail "$first installed $command"
done
! "${in_clone[@]}" "dpkg -s libcmocka-dev" >/dev/null 2>&1 || fail "$first installed cmocka"

second="$second${arguments:+ $arguments}"
echo "== the second command: $second"
step 4800 "${in_clone[@]}" "$second" 2>&1 | tee "$work/log" || fail "$second"
grep -qE ' install \.+ +Passed' "$work/log" || fail "$second did not run the test install"

# The presets that it left out are built from the same packages, with the compiler's own libraries: those must be there.
for preset in asan:address,undefined tsan:thread; do
    if grep -q "^== ${preset%:*}\$" "$work/log"; then continue; fi
    third="cmake --preset ${preset%:*} -DMAR_TESTS=ON && for language in c c++; do
        echo 'int main() { return 0; }' | gcc -x \$language -fsanitize=${preset#*:} - -o /tmp/sanitized &&
            /tmp/sanitized || exit 1; done"
    echo "== preset ${preset%:*}"
    step 300 "${in_clone[@]}" "$third" >"$work/log.${preset%:*}" 2>&1 || {
        cat "$work/log.${preset%:*}"
        fail "preset ${preset%:*}"
    }
done
echo "PASSED"
