# Sourced: `need_cuda` makes sure there is a CUDA toolkit to compile with, and names it in CUDA_PATH unless nvcc is in
# PATH. Where there is none, the compiler and the libraries are fetched as Python packages into build/cuda-toolkit;
# code compiled with them needs no GPU to build, and a driver to run.

cuda_packages="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.*
nvidia-cuda-cccl==13.0.* nvidia-cublas==13.0.* nvidia-curand==10.4.0.*"

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

need_cuda() {
    if have_cuda; then return 0; fi
    need_packages python3-venv
    echo "Fetching the CUDA toolkit into build/cuda-toolkit"
    rm -rf build/cuda-toolkit build/cuda-toolkit.part build/cuda-venv
    # shellcheck disable=SC2086  # the list is words
    if ! { python3 -m venv build/cuda-venv &&
        build/cuda-venv/bin/pip install -q --no-deps --target build/cuda-toolkit.part $cuda_packages; }; then
        echo "The CUDA toolkit could not be fetched; with one installed, set CUDA_PATH to it" >&2
        return 1
    fi
    # The packages carry libraries under their version's name only.
    for library in build/cuda-toolkit.part/nvidia/cu13/lib/lib*.so.*; do
        ln -sf "$(basename "$library")" "${library%.so.*}.so"
    done
    rm -rf build/cuda-venv
    mv build/cuda-toolkit.part build/cuda-toolkit
    export CUDA_PATH="$PWD/build/cuda-toolkit/nvidia/cu13"
}

# Whether this machine has a GPU that CUDA can use.
have_gpu() {
    command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'
}
