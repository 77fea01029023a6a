#!/bin/sh
# Installs into a fresh prefix. Builds and runs the examples against it, by pkg-config and by find_package, with
# libmar.so and with libmar.a. Then moves the prefix.
# Called by ctest: test_install.sh SOURCE_DIR BUILD_DIR CC GENERATOR [FLAGS]
# GENERATOR is the CMake generator of the build, so that no other has to be installed.
set -eu
source_dir=$1 build_dir=$2 cc=$3 generator=$4 flags=${5:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

cmake --install "$build_dir" --prefix "$prefix" >"$work/install.log" 2>&1 || {
    cat "$work/install.log"
    fail "cmake --install"
}
pc=$(find "$prefix" -name libmar.pc)
[ -n "$pc" ] || fail "no libmar.pc installed"
lib=$(dirname "$(dirname "$pc")")
for file in "$prefix/bin/mar" "$prefix/include/mar.h" "$prefix/share/libmar/demo/target.safetensors" "$prefix/share/libmar/demo/t5/spiece.model" "$lib/libmar.so" "$lib/libmar.a" "$prefix/share/man/man1/mar.1" \
    "$prefix/share/doc/libmar/LICENSE" "$prefix/share/doc/libmar/demo-models.md" \
    "$prefix/share/bash-completion/completions/mar" "$prefix/share/zsh/site-functions/_mar" \
    "$prefix/share/fish/vendor_completions.d/mar.fish" \
    "$lib/cmake/libmar/libmar-config.cmake" "$lib/cmake/libmar/libmar-config-version.cmake"; do
    [ -e "$file" ] || fail "not installed: ${file#"$prefix"/}"
done
if [ -e "$build_dir/libmar-mpi.so" ]; then # built where there is MPI, which nothing else asks for
    [ -e "$lib/libmar-mpi.so" ] || fail "not installed: libmar-mpi.so"
    if ldd "$prefix/bin/mar" "$lib/libmar.so" | grep 'libmpi'; then fail "the command or the library needs MPI"; fi
fi

# Installed files must not refer to the source tree or the build tree.
if grep -rlF -e "$build_dir" "$lib/cmake" "$pc"; then fail "these name the build tree"; fi

echo "== by pkg-config"
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046,SC2086  # flags are words
$cc -std=c11 -Wall -Wextra -Wpedantic -Werror $flags "$source_dir/examples/generate.c" \
    $(pkg-config --cflags --libs libmar) -Wl,-rpath,"$lib" -o "$work/by_pkg_config"
"$work/by_pkg_config" 7 "$work/a.ppm"

echo "== libmar.a"
libraries=$(pkg-config --static --libs libmar | sed 's/-lmar //') # CUDA's are paths
# shellcheck disable=SC2086  # flags are words
$cc -std=c11 $flags -I"$prefix/include" "$source_dir/examples/generate.c" "$lib/libmar.a" $libraries -o "$work/by_archive"
if [ ! -e /usr/share/libmar ] && [ ! -e /usr/local/share/libmar ]; then # no libmar is installed on this system
    if "$work/by_archive" 7 "$work/none.ppm" 2>"$work/error"; then fail "the demo was found without its folder"; fi
    grep -qF "not found in share/libmar beside or above $work" "$work/error" || fail "no folder is named: $(cat "$work/error")"
    [ "$(wc -l <"$work/error")" = 1 ] || fail "an error is not one line: $(cat "$work/error")"
fi
case $libraries in
*cuda*) ;; # the documents' line is that of other builds
*)
    documented=$(sed -n 's|^cc \(main.c .*libmar\.a [^#]*\)#.*|\1|p' "$source_dir/docs/usage.md" | sed "s|DIR/lib|$lib|; s|DIR|$prefix|g")
    [ -n "$documented" ] || fail "docs/usage.md has no line that links libmar.a"
    cp "$source_dir/examples/generate.c" "$work/main.c"
    # shellcheck disable=SC2086
    (cd "$work" && $cc $flags $documented -o documented) || fail "the line of docs/usage.md: cc $documented"
    MAR_DATA_DIR=$prefix/share/libmar "$work/documented" 7 "$work/documented.ppm"
    cmp "$work/documented.ppm" "$work/a.ppm" || fail "the documents' program makes another picture"
    ;;
esac
MAR_DATA_DIR=$prefix/share/libmar "$work/by_archive" 7 "$work/static.ppm"
cp "$work/by_archive" "$prefix/bin" # beside the folder
"$prefix/bin/by_archive" 7 "$work/beside.ppm"
if ldd "$work/by_archive" | grep libmar; then fail "libmar.so is loaded beside libmar.a"; fi

echo "== by find_package"
if ! cmake -G "$generator" -S "$source_dir/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="$flags" >"$work/cmake.log" 2>&1 ||
    ! cmake --build "$work/build" >>"$work/cmake.log" 2>&1; then
    cat "$work/cmake.log"
    fail "find_package(libmar)"
fi
"$work/build/generate" 7 "$work/b.ppm"
MAR_DATA_DIR=$prefix/share/libmar "$work/build/generate_static" 7 "$work/c.ppm"
(cd "$work" && printf '3\n7\n1\n' | build/requests && ls request-1.ppm request-3.ppm >/dev/null)

[ "$(head -c 2 "$work/a.ppm")" = P6 ] || fail "not a PPM file"
[ "$(wc -c <"$work/a.ppm")" -gt 3000 ] || fail "the picture is too small: $(wc -c <"$work/a.ppm") bytes"
for other in b c static beside request-2; do cmp "$work/a.ppm" "$work/$other.ppm" || fail "two programs differ"; done
if "$work/by_pkg_config" 10 "$work/none.ppm" 2>"$work/error"; then fail "class 10 of 10 was accepted"; fi
[ "$(wc -l <"$work/error")" = 1 ] || fail "an error is not one line: $(cat "$work/error")"

echo "== several threads"
for threads in 1 4; do
    mkdir "$work/by_$threads"
    "$work/build/threads" $threads 13 "$work/by_$threads" # three classes come twice
done
[ "$(find "$work/by_4" -name '*.ppm' | wc -l)" = 13 ] || fail "not 13 pictures: $(ls "$work/by_4")"
diff -r "$work/by_1" "$work/by_4" || fail "the pictures depend on the number of threads"
cmp "$work/by_1/0-0.ppm" "$work/by_1/10-0.ppm" >/dev/null && fail "two images of a class are the same"

echo "== the installed command"
version=$(sed -n 's/^#define MAR_VERSION_[A-Z]* //p' "$prefix/include/mar.h" | tr '\n' . | sed 's/[.]$//')
[ "$("$prefix/bin/mar" --version)" = "mar $version" ] || fail "the command's version is not $version"
[ "$(pkg-config --modversion libmar)" = "$version" ] || fail "libmar.pc's version is not $version"
"$prefix/bin/mar" completion bash | cmp - "$prefix/share/bash-completion/completions/mar" || fail "an old completion"
"$prefix/bin/mar" generate --class 7 --num 1 --out "$work/seven.png"
[ -s "$work/seven.png" ] || fail "no picture"

echo "== moved"
mv "$prefix" "$work/moved"
LD_LIBRARY_PATH=$work/moved/${lib#"$prefix"/} "$work/by_pkg_config" 7 "$work/moved.ppm"
cmp "$work/a.ppm" "$work/moved.ppm" || fail "the moved library makes another picture"
"$work/moved/bin/mar" generate --class 7 --num 1 --out "$work/moved.png"
cmp "$work/seven.png" "$work/moved.png" || fail "the moved command makes another picture"

echo "== the folder of a Python package"
cmake --install "$build_dir" --component python --prefix "$work/python" >/dev/null
ln -s libmar.so "$work/python/$(readelf -d "$work/python/libmar.so" | sed -n "s/.*SONAME.*\[\(.*\)\]/\1/p")" # as the program asks for it
LD_LIBRARY_PATH=$work/python "$work/by_pkg_config" 7 "$work/python.ppm"
cmp "$work/a.ppm" "$work/python.ppm" || fail "the library beside its data makes another picture"
