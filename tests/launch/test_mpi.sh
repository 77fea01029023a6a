#!/bin/sh
# Checks that the ranks of mpirun find their places by MPI, and that one of them may be killed: test_mpi.sh SHOWN.
# SHOWN is tests/launch/shown beside libmar-mpi.so. Without MPI it prints a line SKIPPED; its exit status is then 77.
set -eu
shown=$1
. "$(dirname "$0")/mpi.sh"
need_mpi launch.mpi "$(dirname "$shown")"

places() { # N COMMAND...: sorted lines of N ranks
    n=$1
    shift
    mpirun -n "$n" "$@" >"$work/out" 2>"$work/err" || fail "mpirun -n $n $*: $(cat "$work/out" "$work/err")"
    sort "$work/out"
}

for n in 2 3; do
    i=0
    while [ $i -lt $n ]; do
        echo "mpi $i/$n local $i/$n by MPI (...)"
        i=$((i + 1))
    done >"$work/expected"
    places $n "$shown" | sed 's/(.*)/(...)/' >"$work/found"
    cmp -s "$work/found" "$work/expected" || fail "mpirun -n $n: $(cat "$work/out" "$work/err")"
done
[ "$(places 1 "$shown")" = "alone 0/1 local 0/1 by one process" ] || fail "mpirun -n 1: $(cat "$work/out")"
[ "$(places 2 "$shown" 1/5 | sed 's/ local.* by/ by/' | uniq)" = "shard 0/5 by --shard 1/5" ] || fail "--shard: $(cat "$work/out")"

# The launcher of another MPI sets its own variables, so each process is alone.
status=0
PMI_RANK=1 PMI_SIZE=4 "$shown" >"$work/out" 2>"$work/err" || status=$?
[ $status = 1 ] && grep -q '^mar: PMI_SIZE says that 4 processes were started, but each finds itself alone by ' "$work/err" ||
    fail "four worlds of one process: $status $(cat "$work/out" "$work/err")"

# With --enable-recovery Open MPI lets the others continue when one is killed. They do not wait for it. Here each of
# them waits until the killed one is gone.
if mpirun --version 2>/dev/null | grep -q 'Open MPI) 4'; then
    cat >"$work/rank.sh" <<'EOF'
"$1" >"$2/place.$OMPI_COMM_WORLD_RANK"
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
    echo $$ >"$2/part" && mv "$2/part" "$2/pid"
    kill -KILL $$
fi
until [ -e "$2/pid" ] && ! kill -0 "$(cat "$2/pid")" 2>/dev/null; do sleep 0.05; done
echo done >"$2/done.$OMPI_COMM_WORLD_RANK"
EOF
    timeout 60 mpirun --enable-recovery -n 3 sh "$work/rank.sh" "$shown" "$work" >"$work/out" 2>&1 || :
    [ -e "$work/done.0" ] && [ -e "$work/done.2" ] && [ ! -e "$work/done.1" ] ||
        fail "one rank killed: $(ls "$work") $(cat "$work/out")"
    grep -q '^mpi 1/3 ' "$work/place.1" || fail "the killed rank: $(cat "$work/place.1")"
fi
echo PASSED
