#!/usr/bin/env bash
# What users install: scripts/release.sh makes it, and lintian judges the packages. Then each is installed on a bare system
# and makes a picture:
#   Debian 12       the wheel; the command, with its manual, completion and unit; programs in C and C++ with libmar-dev; the
#                   tarball, moved; the container's image, which buildah builds with this bare system for its base
#   Ubuntu 24.04    the wheel; the packages. Skipped by name if no registry of Ubuntu can be reached.
# A purge leaves nothing. A project with libmar inside is built with a C compiler, cmake, ninja, zlib, PCRE2 and utf8proc
# only. Called by ctest, or by hand as root:
#   tests/fresh/test_packages.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
name=packages
. "$(dirname "$0")/../../scripts/root.sh"
if [ "$1" != --inside ]; then
    for command in lintian buildah ip; do
        command -v $command >/dev/null || skip "$command is not installed"
    done
    in_namespaces "$0" "$1" "$2" && exit 0
fi

source_dir=$2 work=$3 clone=/root/libmar made=$3/made

# make_system SUITE VERSION: makes the packages, and a bare system with them in /made. Returns 1 if no registry is reached.
# Within a condition set -e is off.
make_system() {
    local status=0
    echo "== release.sh $1"
    "$source_dir/scripts/release.sh" "$made" "$1" >"$work/log" 2>&1 || status=$?
    if [ $status = 77 ]; then
        sed -n 's/^SKIPPED: release.sh/SKIPPED: packages/p' "$work/log"
        return 1
    fi
    [ $status = 0 ] || {
        tail -n 30 "$work/log"
        fail "release.sh $1"
    }
    debs=("$made"/*~"$2"_*.deb)
    [ "$(basename -a "${debs[@]}" | sed 's/_.*//' | tr '\n' ' ')" = "libmar-dev libmar0 mar " ] || fail "not three: ${debs[*]}"
    echo "== lintian" # a package of Debian's own would close a report
    lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "${debs[@]}" || fail "lintian"
    make_root "$1"
    mkdir "$root/made" && cp "${debs[@]}" "$made"/mar-*.whl "$made"/libmar-*.tar.gz "$root/made" || fail "no packages"
}

use_wheel() {
    echo "== the wheel"
    in_root 900 "apt-get -q update; apt_install python3-venv; python3 -m venv venv; venv/bin/pip -q install /made/mar-*.whl
        not ls /usr/lib/*/libutf8proc.so.*; not ls /usr/lib/*/libpng*
        venv/bin/mar --version; venv/bin/mar generate --class 7 --seed 3 --out wheel.png
        venv/bin/python -c 'import mar; assert mar.load()([7], output=\"numpy\", num_iter=4).shape == (1, 32, 32, 3)'
        ls venv/share/man/man1/mar.1; ls venv/lib/python3.*/site-packages/mar-*.dist-info/licenses/libpcre2-8-0"
    is_picture wheel.png
}

use_command() { # $1: the packages
    echo "== the command"
    in_root 600 "apt_install $1
        mar --version; mar generate --class 7 --seed 3 --out seven.png
        mar generate --model demo-discrete --class 7 --out other.png
        mar eval --num_images 20 --num_iter 4 --num_sampling_steps 4 --out judged"
    is_picture seven.png
    echo "== manual, completions and unit"
    in_root 600 "apt_install man-db bash-completion zsh systemd curl
        man mar | grep 'mar generate'
        bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader mar || complete -p mar'
        zsh -c 'autoload -U compinit && compinit -D && whence -w _mar'
        [ -s /usr/share/fish/vendor_completions.d/mar.fish ]
        unit=/usr/lib/systemd/system/mar.service
        systemd-analyze verify \$unit 2>said || { cat said; exit 1; }
        not grep 'mar[.]service' said
        [ \"\$(systemctl is-enabled mar)\" = disabled ]; systemctl enable mar; mkdir /etc/mar
        echo 0123456789abcdef >/etc/mar/token; echo MAR_OPTIONS=--threads 1 >/etc/mar/options
        mkdir credentials; cp /etc/mar/token credentials; chmod -R a+rX credentials
        export CREDENTIALS_DIRECTORY=/tmp/credentials MAR_OPTIONS='--threads 1' # what systemd runs, as another user
        service=\$(sed -n 's/--port 8080/--port 0/;s/^ExecStart=//p' \$unit)
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"exec \$service\" >address & service=\$!
        while [ ! -s address ]; do sleep 0.1; done
        TOKEN=0123456789abcdef sh /client.sh \$(cat address) 7 served.png; not sh /client.sh \$(cat address) 7 none.png
        kill \$service; wait \$service"
    is_picture served.png
}

# purge PACKAGES
purge() {
    echo "== a purge"
    in_root 300 "apt-get -q -y purge $1; [ -z \"\$(dpkg-query -W 'libmar*' mar 2>/dev/null)\" ]
        left=\$(find / -xdev \\( -path /proc -o -path $clone -o -path /made -o -path /tmp -o -path /var/cache/man \\) -prune -o \
            \\( -name '*libmar*' -o -name mar -o -name 'mar.*' \\) -print)
        [ -z \"\$left\" ] || { echo \"left: \$left\"; exit 1; }
        [ -z \"\$(ldconfig -p | grep libmar)\" ]"
}

is_picture() {
    [ "$(head -c 4 "$root/tmp/$1" | tail -c 3)" = PNG ] || fail "no picture $1"
}

! "$source_dir/scripts/release.sh" "$made" jammy 2>"$work/log" || fail "release.sh jammy is not refused"
grep -q "no system 'jammy', expected bookworm or noble" "$work/log" || fail "release.sh jammy: $(cat "$work/log")"
make_system bookworm debian12 || exit 77
tar --one-file-system --exclude=./dev/* --exclude=./made -C "$root" -cf "$work/base.tar" .
make_clone
cp "$source_dir/examples/client.sh" "$root"
use_wheel
use_command "/made/libmar0_*.deb /made/mar_*.deb"
cmp "$root/tmp/wheel.png" "$root/tmp/seven.png"
[ ! -e "$root/usr/include/mar.h" ] || fail "a header without libmar-dev"

echo "== a project with libmar inside"
in_root 900 "apt_install gcc libc6-dev cmake ninja-build zlib1g-dev libpcre2-dev libutf8proc-dev
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
in_root 600 "apt_install /made/libmar-dev_*.deb g++ pkg-config
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

purge "mar libmar0 libmar-dev"
in_root 10 "not ./generate 7 none.ppm"

echo "== the tarball"
libraries=$(sed -n 's/.*`apt install \(libcjson1[^`]*\)`.*/\1/p' "$source_dir/docs/usage.md")
[ "$libraries" ] || fail "docs/usage.md does not say what the tarball needs"
in_root 300 "apt-get -q -y autoremove --purge; apt_install $libraries
    mkdir /opt/first; tar -xf /made/libmar-*.tar.gz -C /opt/first; mv /opt/first/libmar-* /srv/moved
    /srv/moved/bin/mar generate --class 7 --seed 3 --out again.png; cmp seven.png again.png
    export PKG_CONFIG_PATH=/srv/moved/lib/pkgconfig
    gcc $clone/examples/generate.c \$(pkg-config --cflags --libs libmar) -Wl,-rpath,/srv/moved/lib -o generate
    ./generate 7 c.ppm; cmp a.ppm c.ppm
    cmake -G Ninja -S $clone/examples -B moved -DCMAKE_PREFIX_PATH=/srv/moved; cmake --build moved; moved/generate 7 d.ppm; cmp a.ppm d.ppm
    [ -s /srv/moved/share/doc/libmar/LICENSE ]"

echo "== the container" # whose base has the name that the file asks for
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
images=(buildah --root "$work/images" --runroot "$work/runs")
step 600 env made="$made" work="$work" bash -euc '
    base=$("$@" from scratch)
    "$@" add -q "$base" "$work/base.tar" /
    "$@" commit -q "$base" localhost/debian:12-slim
    "$@" build -q --pull=never --format docker -t mar "$made"
    "$@" from --pull=never --ulimit nofile=4096 --name mar mar' bash "${images[@]}" >"$work/log" 2>&1 || {
    tail -n 30 "$work/log"
    fail "buildah"
}
"${images[@]}" inspect --type image --format '{{range .Docker.Config.Entrypoint}}{{println .}}{{end}}' mar >"$work/entry"
"${images[@]}" inspect --type image --format '{{range .Docker.Config.Healthcheck.Test}}{{println .}}{{end}}' mar >"$work/check"
step 300 unshare --net --pid --fork --kill-child --mount-proc bash -euc '
    cd "$1"; root=$2; shift 2
    ip link set lo up
    mapfile -t entry < <(grep . entry); mapfile -t check < <(sed 1d check | grep .)
    [ "$("$@" run mar -- id -u)" = 10001 ]
    "$@" run mar -- "${entry[@]}" &
    until "$@" run mar -- "${check[@]}"; do kill -0 $!; sleep 0.5; done
    chroot "$root" sh /client.sh http://127.0.0.1:8080 7 /tmp/contained.png' bash "$work" "$root" "${images[@]}" >"$work/log" 2>&1 || {
    tail -n 30 "$work/log"
    fail "the container"
}
is_picture contained.png

if make_system noble ubuntu24.04; then
    cp "$source_dir/examples/client.sh" "$root"
    use_wheel
    use_command "/made/*.deb"
    purge "mar libmar0 libmar-dev"
fi
echo "PASSED"
