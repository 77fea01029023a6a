#!/bin/sh
# Makes the wheel, installs it in a fresh venv, without network, and runs its command and test_mar.py there. The portable
# wheel is tried on bare systems (tests/fresh/test_packages.sh). Called by ctest: test_wheel.sh SOURCE_DIR MAR_COMMAND
set -eu
source_dir=$1 command=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=
for each in python3 /usr/bin/python3; do
    if "$each" -c 'import ensurepip, numpy, venv' >/dev/null 2>&1; then python=$each && break; fi
done
if [ -z "$python" ]; then
    echo "SKIPPED: wheel: no python3 with numpy and venv (Debian: python3-numpy, python3-venv)"
    exit 77
fi
"$python" -m venv --system-site-packages "$work/venv"
wheel=$("$source_dir/scripts/wheel.sh" "$work")
"$work/venv/bin/pip" -q install --no-index --no-deps --disable-pip-version-check "$work/${wheel##*/}"
cd "$work" # the module must come from the wheel
"$work/venv/bin/mar" generate --class 7 --num 1 --num_iter 4 --out wheel.png >/dev/null
"$command" generate --class 7 --num 1 --num_iter 4 --out build.png >/dev/null
cmp wheel.png build.png
if "$work/venv/bin/python" -X importtime "$work/venv/bin/mar" --version 2>&1 | grep numpy; then exit 1; fi
[ -s venv/share/man/man1/mar.1 ] && [ -s venv/share/bash-completion/completions/mar ]
"$work/venv/bin/python" -W error "$source_dir/tests/python/test_mar.py" "$command" "$source_dir/tests/rooms/abi.txt"
"$work/venv/bin/python" -W error "$source_dir/examples/search.py" --images 4 --batch 2 --plain num_iter=2,num_sampling_steps=4 |
    grep -q "^another seed"
