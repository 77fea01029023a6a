#!/bin/sh
# Makes a Python wheel of build/release: wheel.sh [DIR]. It has the module of python/mar, libmar.so and the demo models.
# Writes DIR/mar-VERSION-py3-none-manylinux_2_N_ARCH.whl, DIR by default build/wheel, where 2.N is the newest symbol
# version of glibc that the library needs. Prints the wheel's name.
set -eu
cd "$(dirname "$0")/.."
out=${1:-build/wheel}
[ -f build/release/libmar.so ] || scripts/build.sh release mar >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/mar"
cp python/mar/__init__.py python/mar/_lib.py python/mar/py.typed "$work/mar"
cmake --install build/release --component python --prefix "$work/mar" >/dev/null
strip --strip-unneeded "$work/mar/libmar.so"
python3 - "$work" "$out" <<'END'
import base64, hashlib, pathlib, platform, re, subprocess, sys, zipfile
work, out = map(pathlib.Path, sys.argv[1:])
symbols = subprocess.run(["objdump", "-T", work / "mar/libmar.so"], check=True, capture_output=True, text=True).stdout
glibc = max(int(n) for n in re.findall(r"GLIBC_2\.(\d+)", symbols))
header = pathlib.Path("include/mar.h").read_text()
version = ".".join(re.search(rf"define MAR_VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))
tag, name = f"py3-none-manylinux_2_{glibc}_{platform.machine()}", f"mar-{version}"
info = work / f"{name}.dist-info"
info.mkdir()
(info / "METADATA").write_text(f"""Metadata-Version: 2.1
Name: mar
Version: {version}
Summary: Images from autoregressive models with continuous and discrete tokens (libmar)
License: MIT
Requires-Python: >=3.9
Requires-Dist: numpy
""")
(info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: scripts/wheel.sh\nRoot-Is-Purelib: false\nTag: {tag}\n")
(info / "LICENSE").write_bytes(pathlib.Path("LICENSE").read_bytes())
files = sorted(f for f in work.rglob("*") if f.is_file())
record = ""
path = out / f"{name}-{tag}.whl"
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
    def add(to, data): # the same bytes make the same wheel
        wheel.writestr(zipfile.ZipInfo(to, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    for f in files:
        data, to = f.read_bytes(), f.relative_to(work).as_posix()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{to},sha256={digest},{len(data)}\n"
        add(to, data)
    add(f"{info.name}/RECORD", record + f"{info.name}/RECORD,,\n")
print(path)
END
