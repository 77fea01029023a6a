# The file env.sh of a kit (scripts/gpu_kit.sh). Sourced, on the machine with the GPU: `. DIR/env.sh` in bash, or
# `kit=DIR; . DIR/env.sh` in any sh. It unpacks the kit's packages beside the system, once, and lets compiler, linker,
# pkg-config and CMake find them; nothing is installed, and what it says is a line or two. They are unpacked into DIR/unpacked,
# or, if that cannot be written or has a space in its name, into a folder in $TMPDIR or /tmp that only this user can read.

mar_kit_fail() {
    echo "env.sh: $*" >&2
    return 1
}

# mar_kit_unpack INTO: all packages of the folder mar_kit, into a folder that has all of them or is not there
mar_kit_unpack() {
    (cd "$mar_kit" && sha256sum -c --status sums) ||
        { mar_kit_fail "a package in $mar_kit is missing or damaged; copy the kit again"; return 1; }
    rm -rf "$1" "$1.part"
    mkdir -p "$1.part" || { mar_kit_fail "cannot write the folder $1.part"; return 1; }
    for mar_kit_file in "$mar_kit"/*.deb; do
        if command -v dpkg-deb >/dev/null 2>&1; then
            dpkg-deb -x "$mar_kit_file" "$1.part"
        else
            ar p "$mar_kit_file" data.tar.xz | tar -xJ -C "$1.part"
        fi || { mar_kit_fail "cannot unpack $mar_kit_file, expected dpkg-deb, or ar, tar and xz"; return 1; }
    done
    for mar_kit_lib in "$1.part"/usr/lib/*-linux-gnu*; do break; done
    for mar_kit_file in blas lapack; do ln -sf "lib$mar_kit_file.so.3" "$mar_kit_lib/$mar_kit_file/lib$mar_kit_file.so"; done
    cp "$mar_kit/sums" "$1.part/sums" && mv "$1.part" "$1"
}

# Do they link and run here? The C library may be older than the packages'.
mar_kit_try() {
    # Debian's link to zlib is absolute: let it name the zlib that the compiler finds here.
    mar_kit_zlib=$(cc -print-file-name=libz.so.1)
    [ -e "$mar_kit_zlib" ] || { mar_kit_fail "cc finds no libz.so.1, expected zlib's library on this machine"; return 1; }
    ln -sf "$mar_kit_zlib" "$mar_kit_lib/libz.so"
    if printf '%s\n' '#include <cjson/cJSON.h>' '#include <png.h>' '#include <stdio.h>' \
        '#include <jpeglib.h>' 'double dlapy2_(double *, double *);' \
        'int main(void) { struct jpeg_error_mgr e; double x = 3, y = 4; return !cJSON_Version() ||' \
        '!png_access_version_number() || !jpeg_std_error(&e) || dlapy2_(&x, &y) < 4.9; }' |
        cc -x c -o "$mar_kit_deps/try" - -lcjson -lpng -ljpeg -lz -llapack -lblas >"$mar_kit_deps/log" 2>&1 &&
        "$mar_kit_deps/try" 2>>"$mar_kit_deps/log"; then
        touch "$mar_kit_deps/works"
    else
        mar_kit_fail "the packages do not work here: $(grep -m 1 error "$mar_kit_deps/log" || tail -n 1 "$mar_kit_deps/log")"
    fi
}

# mar_kit_own DIR: a folder in DIR, which is this user's and no other's: anyone may have made it first
mar_kit_own() {
    mkdir -m 700 "$1" 2>/dev/null || [ -e "$1" ] || [ -L "$1" ] ||
        { mar_kit_fail "cannot make the folder $1"; return 1; }
    { [ -d "$1" ] && [ -O "$1" ] && [ ! -L "$1" ]; } ||
        { mar_kit_fail "$1 is not a folder of this user, expected none or one; set TMPDIR to another place"; return 1; }
    mar_kit_deps=$1/unpacked
}

# mar_kit_first LIST ITEM: LIST, divided by colons, with ITEM before it if it is not in it
mar_kit_first() {
    case ":$1:" in
    *":$2:"*) printf %s "$1" ;;
    *) printf %s "$2${1:+:$1}" ;;
    esac
}

mar_kit_env() {
    mar_kit=${kit:-}
    if [ -n "${BASH_VERSION:-}" ]; then
        eval 'mar_kit_file=${BASH_SOURCE[0]}'
        case $mar_kit_file in */*) mar_kit=${mar_kit_file%/*} ;; *) mar_kit=. ;; esac
    fi
    [ -f "$mar_kit/sums" ] ||
        { mar_kit_fail "not a kit: '$mar_kit'; in a shell that is not bash: kit=DIR; . DIR/env.sh"; return 1; }
    mar_kit=$(cd -- "$mar_kit" && pwd)
    mar_kit_builds=1
    for mar_kit_file in cc cmake ninja; do
        command -v "$mar_kit_file" >/dev/null 2>&1 && continue
        [ -e "$mar_kit/programs" ] ||
            { mar_kit_fail "no $mar_kit_file in PATH, expected a C compiler, cmake and ninja"; return 1; }
        echo "env.sh: no $mar_kit_file in PATH: only the kit's programs run here" >&2
        mar_kit_builds=
        break
    done
    case "$(cat "$mar_kit/architecture") $(uname -m)" in
    "amd64 x86_64" | "arm64 aarch64" | "ppc64el ppc64le" | "riscv64 riscv64") ;;
    *) mar_kit_fail "the kit is for $(cat "$mar_kit/architecture"), this machine is $(uname -m)"; return 1 ;;
    esac
    mar_kit_deps=$mar_kit/unpacked
    case $mar_kit_deps in *[[:space:]]*) mar_kit_deps= ;; esac
    if [ -z "$mar_kit_deps" ] || { [ ! -d "$mar_kit_deps" ] && [ ! -w "$mar_kit" ]; }; then
        mar_kit_own "${TMPDIR:-/tmp}/libmar-kit-$(id -u)" || return 1
    fi
    cmp -s "$mar_kit/sums" "$mar_kit_deps/sums" || mar_kit_unpack "$mar_kit_deps" || return 1

    for mar_kit_lib in "$mar_kit_deps"/usr/lib/*-linux-gnu*; do break; done
    [ -e "$mar_kit_lib/libcjson.so" ] || { mar_kit_fail "no libcjson.so in $mar_kit_lib"; return 1; }
    command -v pkg-config >/dev/null 2>&1 || PATH=$PATH:$mar_kit_deps/usr/bin
    # An installed system has links to LAPACK and BLAS where the other libraries are.
    for mar_kit_file in "$mar_kit_lib/blas" "$mar_kit_lib/lapack" "$mar_kit_lib"; do
        LD_LIBRARY_PATH=$(mar_kit_first "${LD_LIBRARY_PATH:-}" "$mar_kit_file")
        LIBRARY_PATH=$(mar_kit_first "${LIBRARY_PATH:-}" "$mar_kit_file")
        CMAKE_LIBRARY_PATH=$(mar_kit_first "${CMAKE_LIBRARY_PATH:-}" "$mar_kit_file")
    done
    CPATH=$(mar_kit_first "${CPATH:-}" "$mar_kit_deps/usr/include/${mar_kit_lib##*/}") # jconfig.h of libjpeg
    CPATH=$(mar_kit_first "$CPATH" "$mar_kit_deps/usr/include")
    PKG_CONFIG_PATH=$(mar_kit_first "${PKG_CONFIG_PATH:-}" "$mar_kit_lib/pkgconfig")
    PKG_CONFIG_SYSROOT_DIR=$mar_kit_deps
    CMAKE_PREFIX_PATH=$(mar_kit_first "${CMAKE_PREFIX_PATH:-}" "$mar_kit_deps/usr")
    export PATH LD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
    MAR_GPU_KIT=$mar_kit # for scripts/gpu_hour.sh
    export CMAKE_PREFIX_PATH CMAKE_LIBRARY_PATH MAR_GPU_KIT

    [ -z "$mar_kit_builds" ] || [ -e "$mar_kit_deps/works" ] || mar_kit_try || return 1
    if [ "$mar_kit_builds" ] && ! command -v nvcc >/dev/null 2>&1 && [ ! -x "${CUDA_PATH:-/usr/local/cuda}/bin/nvcc" ]; then
        echo "env.sh: no nvcc in PATH, \$CUDA_PATH/bin or /usr/local/cuda/bin: only what runs on the CPU can be built" >&2
    fi
    echo "libmar's packages are in $mar_kit_deps"
}

mar_kit_env
mar_kit_status=$?
unset -f mar_kit_fail mar_kit_unpack mar_kit_try mar_kit_own mar_kit_first mar_kit_env
unset mar_kit mar_kit_builds mar_kit_deps mar_kit_file mar_kit_lib mar_kit_zlib
if [ $mar_kit_status = 0 ]; then unset mar_kit_status; else unset mar_kit_status; return 1; fi
