# Sourced: `need_cuda` makes sure there is a CUDA toolkit to compile with, and names it in CUDA_PATH unless nvcc is in
# PATH. Where there is none, the compiler and the libraries are fetched as Python packages into build/cuda-toolkit;
# code compiled with them needs no GPU to build, and a driver to run. `want_nvdisasm` fetches the disassembler, if it can.

cuda_packages="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.*
nvidia-cuda-cccl==13.0.* nvidia-cublas==13.0.* nvidia-curand==10.4.0.*"
nvdisasm_packages="nvidia-cuda-nvdisasm==13.2.*" # the first there is; it reads the machine code of older ones, too

# Whether there is a toolkit already.
have_cuda() {
    if command -v nvcc >/dev/null 2>&1; then return 0; fi
    for folder in "${CUDA_PATH:-}" /usr/local/cuda "$PWD/build/cuda-toolkit/nvidia/cu13"; do
        if [ -n "$folder" ] && [ -x "$folder/bin/nvcc" ]; then
            export CUDA_PATH="$folder"
            return 0
        fi
    done
    return 1
}

# fetch_python_packages FOLDER PACKAGE...: into FOLDER, all of them or none
fetch_python_packages() {
    need_packages python3-venv
    echo "Fetching $1"
    rm -rf "$1" "$1.part" build/cuda-venv
    if ! { python3 -m venv build/cuda-venv &&
        (part=$1.part && shift && build/cuda-venv/bin/pip install -q --no-deps --target "$part" "$@"); }; then
        return 1
    fi
    rm -rf build/cuda-venv
    mv "$1.part" "$1"
}

need_cuda() {
    if have_cuda; then return 0; fi
    # shellcheck disable=SC2086  # the list is words
    if ! fetch_python_packages build/cuda-toolkit $cuda_packages; then
        echo "The CUDA toolkit could not be fetched; with one installed, set CUDA_PATH to it" >&2
        return 1
    fi
    # The packages carry libraries under their version's name only.
    for library in build/cuda-toolkit/nvidia/cu13/lib/lib*.so.*; do
        ln -sf "$(basename "$library")" "${library%.so.*}.so"
    done
    export CUDA_PATH="$PWD/build/cuda-toolkit/nvidia/cu13"
}

# The disassembler, for scripts/kernel_counts.sh and its test; not every toolkit has it, and all else does without.
want_nvdisasm() {
    for folder in "${CUDA_PATH:-/usr/local/cuda}" "$PWD/build/nvdisasm/nvidia/cu13"; do
        if [ -x "$folder/bin/nvdisasm" ]; then return 0; fi
    done
    if command -v nvdisasm >/dev/null 2>&1; then return 0; fi
    # shellcheck disable=SC2086
    (fetch_python_packages build/nvdisasm $nvdisasm_packages) || echo "Going on without nvdisasm" >&2
}

# Whether this machine has a GPU that CUDA can use.
have_gpu() {
    command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'
}
