# Sourced by gpu_kit.sh, which builds them into the kit, and gpu_hour.sh, which runs them: the programs of a GPU's hour.
# shellcheck shell=sh disable=SC2034 # used where it is sourced

gpu_tests="persistent streamed decode groups chain speculation rounds conv decoding attention head ptx linear product"
gpu_microbenchmarks="exchange chain_proto"

# The targets of the preset cuda.
gpu_targets() {
    printf 'mar_command mar'
    for gpu_test in $gpu_tests; do printf ' test_gpu_%s' "$gpu_test"; done
}

# gpu_compile ARCHITECTURE FOLDER: compiles the microbenchmarks, with the nvcc that have_cuda (cuda.sh) has found.
gpu_compile() {
    nvcc=$(command -v nvcc || echo "${CUDA_PATH:-}/bin/nvcc")
    for gpu_program in $gpu_microbenchmarks; do
        "$nvcc" -O3 -std=c++17 -I. -Iinclude -Xcompiler -Wall,-Wextra -Werror all-warnings \
            -gencode "arch=compute_$1,code=sm_$1" "bench/gpu/$gpu_program.cu" -o "$2/part" &&
            mv "$2/part" "$2/$gpu_program" || return 1
    done
}

# A sum of the sources in the current folder, to know whether programs are of these.
gpu_sources() {
    find CMakeLists.txt CMakePresets.json base bench/gpu cmake diffusion eval families include kernels mar nets specdec \
        tests text tools vae weights -type f ! -name '*.pyc' -print | LC_ALL=C sort | tr '\n' '\0' |
        xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
}
