#!/usr/bin/env bash
# Makes the Debian packages and the tarball of a build, and lets lintian judge the packages. Then uses them on a bare
# Debian 12 as a user would: the command alone; programs in C and C++ with libmar-dev; the tarball, moved. A purge leaves
# nothing. A project with libmar inside is built there with a C compiler, cmake, ninja, zlib, PCRE2 and utf8proc only.
# Called by ctest, or by hand as root, after a build of the preset release:
#   tests/fresh/test_packages.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
name=packages
. "$(dirname "$0")/root.sh"
if [ "$1" != --inside ]; then
    for command in lintian dpkg-shlibdeps file; do
        command -v $command >/dev/null || skip "$command is not installed"
    done
    [ "$(sed -n 's/[.].*//p' /etc/debian_version 2>/dev/null)" = 12 ] || skip "not Debian 12, whose libraries the packages need"
    in_namespaces "$0" "$1" "$2" && exit 0
fi

source_dir=$2 work=$3 clone=/root/libmar build=$(dirname "$3")

echo "== cpack"
(cd "$work" && cpack --config "$build/CPackConfig.cmake" -B "$work/made") >"$work/log" 2>&1 || {
    tail -n 20 "$work/log"
    fail "cpack"
}
debs=("$work"/made/*.deb)
[ "$(cd "$work/made" && ls ./*.deb | sed 's/_.*//' | tr '\n' ' ')" = "./libmar-dev ./libmar0 ./mar " ] || fail "not three: ${debs[*]}"
[ "$(ls "$work"/made/libmar-*-linux-*.tar.gz | wc -l)" = 1 ] || fail "not one tarball: $(ls "$work/made")"

echo "== lintian" # a package of Debian's own would close a report
lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "${debs[@]}" || fail "lintian"

make_root
make_clone
mkdir "$root/made"
cp "$work"/made/*.deb "$work"/made/*.tar.gz "$root/made"
not='not() { if "$@"; then echo "this succeeds: $*"; exit 1; fi; }' # set -e ignores a failing `! command`
# in_root SECONDS COMMANDS: runs them in the root; their output is shown if they fail
in_root() {
    step "$1" chroot "$root" env -i "${variables[@]}" DEBIAN_FRONTEND=noninteractive sh -c "set -eu; $not; cd /tmp; $2" >"$work/log" 2>&1 || {
        tail -n 30 "$work/log"
        fail "$2"
    }
}
install='apt-get -q -y --no-install-recommends install'

echo "== the command"
in_root 600 "apt-get -q update; $install /made/libmar0_*.deb /made/mar_*.deb
    mar --version; mar generate --class 7 --seed 3 --out seven.png; mar generate --model demo-discrete --class 7 --out other.png
    mar eval --num_images 20 --num_iter 4 --num_sampling_steps 4 --out judged
    [ -s /usr/share/man/man1/mar.1.gz ]; [ ! -e /usr/include/mar.h ]"
[ "$(head -c 4 "$root/tmp/seven.png" | tail -c 3)" = PNG ] || fail "the command left no picture"

echo "== a project with libmar inside"
in_root 900 "$install gcc libc6-dev cmake ninja-build zlib1g-dev libpcre2-dev libutf8proc-dev
    not command -v pkg-config; not command -v g++
    cmake -G Ninja -S $clone/tests/install/subproject -B inside -DLIBMAR=$clone -DCMAKE_BUILD_TYPE=Release -DFETCH=ON
    cmake --build inside
    inside/generate 7 inside.ppm; inside/generate_static 7 inside_static.ppm; cmp inside.ppm inside_static.ppm
    cmake --install inside --prefix only; [ \"\$(find only -type f)\" = only/bin/generate_static ]"

echo "== programs"
cat >"$root/tmp/program.cpp" <<'END'
#include <mar.h>
#include <cstdio>
int main()
{
    mar *m = nullptr;
    mar_model *model = nullptr;
    if (mar_open(nullptr, &m) != MAR_OK || mar_model_load(m, "demo", 0, &model) != MAR_OK) return 1;
    std::printf("%ld parameters\n", mar_model_get_config(model)->parameters);
    mar_model_free(model);
    mar_close(m);
}
END
cat >"$root/tmp/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES CXX)
find_package(libmar REQUIRED)
add_executable(by_cmake program.cpp)
target_link_libraries(by_cmake PRIVATE libmar::mar)
END
in_root 600 "$install /made/libmar-dev_*.deb g++ pkg-config
    examples=/usr/share/doc/libmar-dev/examples
    gcc -Wall -Wextra -Werror \$examples/generate.c \$(pkg-config --cflags --libs libmar) -o generate
    ./generate 7 a.ppm; cmp a.ppm inside.ppm
    gcc \$examples/threads.c -pthread \$(pkg-config --cflags --libs libmar) -o threads
    mkdir pictures; ./threads 2 3 pictures; [ \$(ls pictures | wc -l) = 3 ]
    gcc \$(pkg-config --static --cflags libmar) \$examples/generate.c -l:libmar.a \$(pkg-config --static --libs libmar | sed 's/-lmar //') -o static
    ./static 7 static.ppm; cmp a.ppm static.ppm; [ -z \"\$(ldd static | grep libmar)\" ]
    g++ -Wall -Wextra -Werror program.cpp \$(pkg-config --cflags --libs libmar) -o program; ./program
    cmake -G Ninja -B cmake . ; cmake --build cmake; cmake/by_cmake
    cmake -G Ninja -S \$examples -B examples; cmake --build examples
    examples/generate 7 b.ppm; cmp a.ppm b.ppm; examples/generate_static 7 b.ppm; cmp a.ppm b.ppm
    printf '3\n7\n' | examples/requests; cmp a.ppm request-2.ppm"

echo "== a client of the service"
in_root 300 "$install curl
    mar serve --port 0 >address & service=\$!
    while [ ! -s address ]; do sleep 0.1; done
    sh /usr/share/doc/libmar-dev/examples/client.sh \$(cat address) 7 served.png
    [ \$(head -c 4 served.png | tail -c 3) = PNG ]
    kill \$service; wait \$service"

echo "== a purge"
in_root 300 "apt-get -q -y purge mar libmar0 libmar-dev; [ -z \"\$(dpkg-query -W 'libmar*' mar 2>/dev/null)\" ]
    left=\$(find / -xdev \\( -path /proc -o -path $clone -o -path /made -o -path /tmp \\) -prune -o \
        \\( -name '*libmar*' -o -name mar -o -name 'mar.*' \\) -print)
    [ -z \"\$left\" ] || { echo \"left: \$left\"; exit 1; }
    [ -z \"\$(ldconfig -p | grep libmar)\" ]; not ./generate 7 none.ppm"

echo "== the tarball"
in_root 300 "mkdir /opt/first; tar -xf /made/libmar-*.tar.gz -C /opt/first; mv /opt/first/libmar-* /srv/moved
    /srv/moved/bin/mar generate --class 7 --seed 3 --out again.png; cmp seven.png again.png
    export PKG_CONFIG_PATH=/srv/moved/lib/pkgconfig
    gcc $clone/examples/generate.c \$(pkg-config --cflags --libs libmar) -Wl,-rpath,/srv/moved/lib -o generate
    ./generate 7 c.ppm; cmp a.ppm c.ppm
    cmake -G Ninja -S $clone/examples -B moved -DCMAKE_PREFIX_PATH=/srv/moved; cmake --build moved; moved/generate 7 d.ppm; cmp a.ppm d.ppm
    [ -s /srv/moved/share/doc/libmar/LICENSE ]"
echo "PASSED"
