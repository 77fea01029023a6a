#!/bin/sh
# Installs what is missing, builds, and makes a picture of demo images: ./demo.sh [OPTIONS OF mar generate]
set -eu
here=$(pwd)
cd "$(dirname "$0")"
. scripts/packages.sh

need_packages
scripts/build.sh release mar_command
mar=$(pwd)/build/release/mar
cd "$here"
if [ $# -gt 0 ]; then exec "$mar" generate "$@"; fi
exec "$mar" generate --out "$here/demo.png"
