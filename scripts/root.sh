# Sourced by what needs a bare Debian 12 or Ubuntu 24.04: scripts/release.sh and the tests of tests/fresh.
#
# debootstrap makes the root (minbase) in separate mount and process namespaces, with /proc and /dev/pts.
# The namespaces, their processes and mounts end with the test, however it ends. The folder is removed then.
# After SIGKILL it is removed when the test starts again.
#
# The root reaches the registries as this machine does. It gets this machine's mirror of the system (or else debootstrap's
# own), apt's proxy and check settings, resolv.conf and hosts, certificates, proxy variables and pip's settings.
#
# Exit status 77 (skipped for ctest): this machine cannot make such a root. The line SKIPPED says why; test.sh shows it.

skip() {
    echo "SKIPPED: $name: $*"
    exit 77
}

fail() {
    echo "FAILED: $*"
    exit 1
}

# step SECONDS COMMAND...: runs the command with a time limit and prints the time it took. A timeout fails the test.
step() {
    local limit=$1 started=$SECONDS status=0
    shift
    timeout --kill-after=10 "$limit" "$@" || status=$?
    echo "== $((SECONDS - started)) s"
    if [ "$status" = 124 ]; then echo "stopped after $limit s"; fi
    return "$status"
}

# in_namespaces SCRIPT SOURCE_DIR BUILD_DIR [ARGUMENT...]: checks the requirements, then runs
# `SCRIPT --inside SOURCE_DIR WORK ARGUMENT...` in separate namespaces. WORK is a temporary folder in BUILD_DIR.
# Exits with the script's status unless that is 0.
in_namespaces() {
    local script=$1 status=0
    source_dir=$(cd "$2" && pwd)
    mkdir -p "$3"
    work=$(cd "$3" && pwd)/$name
    shift 3
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
        bash "$script" --inside "$source_dir" "$work" "$@" </dev/null &
    child=$!
    wait "$child" || status=$?
    child=
    [ "$status" = 0 ] || exit "$status"
}

# debootstrap_root OPTION...: of make_root
debootstrap_root() {
    step 600 debootstrap "${options[@]}" "$@" "$suite" "$root" "$mirror" $script >"$work/log" 2>&1 || {
        tail -n 5 "$work/log"
        if grep -qE 'Failed getting release file|Invalid Release file' "$work/log"; then
            skip "no registry of $system can be reached"
        fi
        if grep -q 'noexec or nodev' "$work/log"; then skip "$work is mounted noexec or nodev"; fi
        fail "debootstrap"
    }
}

# Ubuntu's keys come with its packages. Debian 12 has none of them: debootstrap fetches them unchecked, and runs nothing. Of
# what it fetched, only the key with this fingerprint is used: "Ubuntu Archive Automatic Signing Key (2018)".
ubuntu_key=F6ECB3762474EDA9D21B7022871920D1991BC93C

# make_root [SUITE]: makes a bare Debian 12 (bookworm, the default) or Ubuntu 24.04 (noble) in $work/SUITE. Sets $root,
# and its environment in `variables`.
make_root() {
    local suite=${1:-bookworm} system="Debian 12" script= options=(--variant=minbase)
    root=$work/$suite
    mirror=
    if command -v apt-get >/dev/null; then
        mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
            sed -n "s/^\\(https\\{0,1\\}:[^ ]*\\) $suite main\$/\\1/p" | sed -n 1p)
        proxy=
        eval "$(apt-config shell proxy Acquire::http::Proxy)"
        if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export http_proxy="${http_proxy:-$proxy}"; fi
    fi
    if [ "$suite" = noble ]; then
        command -v gpg >/dev/null || skip "gpg is not installed, which picks Ubuntu's key"
        system="Ubuntu 24.04"
        script=gutsy # of every later Ubuntu; Debian 12's debootstrap knows none named noble
        mkdir -p "$work/cache"
        options+=(--components=main,universe --cache-dir="$work/cache")
        debootstrap_root --download-only --no-check-gpg
        rm -rf "$root"
        dpkg-deb -x "$work/cache/"ubuntu-keyring_*.deb "$work/keys"
        mkdir -pm 700 "$work/gnupg"
        gpg -q --homedir "$work/gnupg" --import "$work/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg" 2>"$work/log"
        gpg -q --homedir "$work/gnupg" --export $ubuntu_key >"$work/keyring.gpg"
        [ -s "$work/keyring.gpg" ] || fail "Ubuntu's packages are without the key $ubuntu_key"
        options+=(--keyring="$work/keyring.gpg" --force-check-gpg)
    fi
    echo "== a bare $system from ${mirror:-the default mirror}"
    debootstrap_root
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
    # Keeps only this machine's variables for reaching a registry. Waiting threads do not spin, since other tests run
    # beside this one.
    variables=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin MAR_FRESH=yes OMP_WAIT_POLICY=passive)
    while IFS= read -r variable; do
        variables+=("$variable=${!variable}")
    done < <(compgen -e | grep -E '^(PIP_.*|.*_proxy|.*_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE)$')
}

# make_clone: clones $source_dir, with uncommitted changes, into $root$clone. It runs outside the root, so that the
# root has no git. The README does not ask for git.
make_clone() {
    git clone -q --depth 1 "file://$source_dir" "$root$clone"
    git -C "$source_dir" diff --binary --no-ext-diff --no-textconv --no-color HEAD >"$work/uncommitted"
    if [ -s "$work/uncommitted" ]; then
        echo "With what is not committed:"
        git -C "$source_dir" diff --stat --no-color HEAD
        git -C "$root$clone" apply --whitespace=nowarn "$work/uncommitted"
    fi
    git -C "$source_dir" ls-files --others --exclude-standard | sed 's/^/git does not know, so this is not in the clone: /'
}

# in_root SECONDS COMMANDS: runs them in the root's /tmp. Their output is shown if they fail.
in_root() {
    step "$1" chroot "$root" env -i "${variables[@]}" DEBIAN_FRONTEND=noninteractive sh -c "set -eu
        not() { if \"\$@\"; then echo \"this succeeds: \$*\"; exit 1; fi; } # set -e ignores a failing '! command'
        apt_install() { apt-get -q -y --no-install-recommends install \"\$@\"; }
        cd /tmp; $2" >"$work/log" 2>&1 || {
        tail -n 30 "$work/log"
        fail "$2"
    }
}
