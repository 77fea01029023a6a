# Sourced by demo.sh, test.sh, gpu_kit.sh and release.sh: `need_packages [PACKAGE...]` installs with apt what libmar and its command
# are built from, and the packages named, as far as they are missing.

compiler_packages="gcc libc6-dev cmake ninja-build"
packages="$compiler_packages pkg-config zlib1g-dev libpcre2-dev libutf8proc-dev libpng-dev libjpeg-dev libcjson-dev libmicrohttpd-dev liblapack-dev"
test_compiler_packages="g++"
test_packages="$test_compiler_packages libcmocka-dev" # what only the tests need
mpi_packages="libopenmpi-dev openmpi-bin" # what libmar-mpi.so is built with, if it is there; mpirun
webp_packages="libwebp-dev" # with it WebP is read and written, too
python_packages="python3-venv python3-numpy" # what the test of the Python wheel needs
fuzz_packages="clang libclang-rt-dev" # what only the fuzz targets need
package_packages="dpkg-dev file" # what cpack makes Debian packages with

have_package() {
    dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^.i'
}

# `want_packages PACKAGE...`: the same for what can be done without; only root installs it, and failing is no failure.
want_packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then return 0; fi
    (need_packages "$@") || echo "Going on without: $*" >&2
}

need_packages() {
    if ! command -v apt-get >/dev/null 2>&1; then
        # Not Debian: nothing to install with. CMake names what it does not find.
        if command -v cmake >/dev/null 2>&1 && command -v ninja >/dev/null 2>&1; then return 0; fi
        echo "This system has no apt-get. Please install a C compiler, cmake 3.25 or later, ninja, pkg-config and the" >&2
        echo "development files of zlib, PCRE2, utf8proc, libpng, libjpeg, cJSON, libmicrohttpd and LAPACK (for the tests: of cmocka, and a C++" >&2
        echo "compiler), then run this again." >&2
        return 1
    fi
    missing=
    for package in $packages "$@"; do have_package "$package" || missing="$missing $package"; done
    [ -n "$missing" ] || return 0

    sudo=
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            echo "These packages are missing and only root can install them:$missing" >&2
            echo "As root: apt-get install -y --no-install-recommends$missing" >&2
            return 1
        fi
        sudo=sudo
    fi
    echo "Installing:$missing"
    log=$(mktemp)
    # shellcheck disable=SC2086  # the list is words
    if $sudo apt-get -q update >"$log" 2>&1 &&
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $missing >>"$log" 2>&1; then
        rm -f "$log"
        return 0
    fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "apt-get could not install:$missing" >&2
    return 1
}
