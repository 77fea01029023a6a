# Sourced by the tests that run mpirun.

fail() {
    echo "FAILED: $*"
    exit 1
}

# need_mpi TEST BUILD: ends the test if there is no MPI; else makes the folder $work
need_mpi() {
    [ -e "$2/libmar-mpi.so" ] || {
        echo "SKIPPED: $1: no MPI was found to build libmar-mpi.so with (Debian: libopenmpi-dev)"
        exit 77
    }
    command -v mpirun >/dev/null || {
        echo "SKIPPED: $1: mpirun is not installed (Debian: openmpi-bin)"
        exit 77
    }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
}

# Open MPI refuses root, and more processes than cores, unless these permit it. MPI libraries leak memory.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
ASAN_OPTIONS=detect_leaks=0
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe ASAN_OPTIONS
