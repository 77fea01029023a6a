#!/usr/bin/env bash
# Makes what users install, each on a bare system of its own, so that nothing of this machine gets into it:
#   scripts/release.sh [DIR [SYSTEM...]]     as root; needs debootstrap, git and gpg
# DIR is build/packages by default, SYSTEMs are bookworm (Debian 12) and noble (Ubuntu 24.04). Both make the packages
# libmar0, libmar-dev and mar; bookworm also the tarball, the wheel, and the Containerfile beside the packages it installs.
# They are those of HEAD and uncommitted changes. Exit status 77: this machine cannot make such a system; the output says why.
set -euo pipefail
name=release.sh
scripts=$(cd "$(dirname "$0")" && pwd)
. "$scripts/root.sh"
if [ "${1:-}" != --inside ]; then
    source_dir=${scripts%/*}
    mkdir -p "${1:-$source_dir/build/packages}"
    out=$(cd "${1:-$source_dir/build/packages}" && pwd)
    if [ $# -gt 0 ]; then shift; fi
    if [ $# = 0 ]; then set -- bookworm noble; fi
    for suite; do
        case $suite in bookworm | noble) ;; *)
            echo "release.sh: no system '$suite', expected bookworm or noble" >&2
            exit 2
            ;;
        esac
    done
    in_namespaces "$scripts/release.sh" "$source_dir" "$source_dir/build" "$out" "$@"
    ls -l "$out"
    exit 0
fi

source_dir=$2 work=$3 out=$4 clone=/root/libmar
shift 4
. "$scripts/packages.sh"
for suite; do
    make_root "$suite"
    make_clone
    wheel='' make_wheel=''
    if [ "$suite" = bookworm ]; then
        wheel="python3-venv binutils" make_wheel="scripts/wheel.sh --portable /made; cp examples/Containerfile /made"
    fi
    in_root 1800 "apt-get -q update; apt_install $packages $package_packages $webp_packages $wheel
        cd $clone; scripts/build.sh release; (cd build/release && cpack -B /made/packed); $make_wheel"
    made=$(basename -a "$root"/made/packed/mar_*.deb) && made=${made#*~}
    rm -f "$out"/*~"${made%%_*}"_*.deb # of an earlier version
    cp "$root"/made/packed/*.deb "$out"
    if [ "$suite" = bookworm ]; then rm -f "$out"/mar-*.whl "$out"/libmar-*.tar.gz; fi
    if [ "$suite" = bookworm ]; then cp "$root"/made/packed/*.tar.gz "$root"/made/*.whl "$root"/made/Containerfile "$out"; fi
    umount "$root/dev/pts" "$root/proc"
    rm -rf --one-file-system "$root"
done
