#!/bin/sh
# Installs what is missing, builds (with CUDA where there are a GPU, nvcc and g++), makes a picture of demo images, and says
# where the command is: ./demo.sh [OPTIONS OF mar generate]
set -eu
here=$(pwd)
cd "$(dirname "$0")"
. scripts/packages.sh
. scripts/cuda.sh

# On standard error: with options, standard output is that of mar generate.
[ -x build/release/mar ] || [ -x build/cuda/mar ] || echo "The first build takes minutes, later ones seconds." >&2
need_packages
preset=release
if have_gpu && have_cuda && command -v g++ >/dev/null; then preset=cuda; fi # nvcc compiles with g++
scripts/build.sh "$preset" mar_command
mar=$(pwd)/build/$preset/mar
cd "$here"
if [ $# -gt 0 ]; then exec "$mar" generate "$@"; fi
"$mar" generate --out "$here/demo.png"
cat <<END

The command is $mar. On the PATH of this shell:
    export PATH="${mar%/mar}:\$PATH"
Then, for example:
    mar generate --class 3,7 --num 8 --out digits.png
END
