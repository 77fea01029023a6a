#!/bin/sh
# Checks that mpirun -n N mar eval gives the same numbers for every N, without MPI, and if a rank is killed:
# test_eval.sh MAR. Without MPI it prints a line SKIPPED; its exit status is then 77.
set -eu
mar=$1
. "$(dirname "$0")/mpi.sh"
need_mpi launch.eval "$(dirname "$mar")"
cd "$work"

evaluate() { # RUN COMMAND...: the same evaluation of 100 images in 13 shards
    run=$1
    shift
    "$@" eval --num_images 100 --batch 4 --shard_images 8 --seed 3 --num_iter 2 --num_sampling_steps 4 --out "$run"
}

same_numbers() { # RUN: as of one process
    for one in whole "$1"; do sed -n '/"numbers"/,/"run"/p' "$one/result.json" >"numbers.$one"; done
    [ -s numbers.whole ] || fail "no numbers in whole/result.json"
    cmp -s numbers.whole "numbers.$1" || fail "$1: $(diff numbers.whole "numbers.$1")"
}

evaluate whole "$mar" >out 2>err || fail "mar eval: $(cat err)"
for n in 1 2 3; do
    evaluate ranks.$n mpirun -n $n "$mar" >out 2>err || fail "mpirun -n $n: $(cat out err)"
    [ "$(grep -c '^protocol: ' out)" = 1 ] || fail "mpirun -n $n: not one of the ranks says the numbers: $(cat out err)"
    same_numbers ranks.$n
done

# kill_rank_1 RUN: kills rank 1 once it has the run's store open. The rank is stopped during each look.
kill_rank_1() {
    until [ -s pid.1 ]; do sleep 0.01; done
    pid=$(cat pid.1)
    while kill -STOP "$pid" 2>/dev/null; do
        # shellcheck disable=SC2010  # links, whose names are known
        if ls -l "/proc/$pid/fd" 2>/dev/null | grep -q "/$1/runs/.*/lock"; then
            kill -KILL "$pid"
            return
        fi
        kill -CONT "$pid"
        sleep 0.002
    done
    fail "$1: rank 1 ended before it made anything: $(cat out err)"
}
cat >rank.sh <<'EOF'
echo $$ >part.$OMPI_COMM_WORLD_RANK && mv part.$OMPI_COMM_WORLD_RANK pid.$OMPI_COMM_WORLD_RANK
exec "$@"
EOF

if mpirun --version 2>/dev/null | grep -q 'Open MPI) 4'; then
    # The others make what it leaves.
    evaluate killed mpirun --enable-recovery -n 3 sh rank.sh "$mar" >out 2>err &
    job=$!
    kill_rank_1 killed
    wait $job || :
    same_numbers killed
    # Without that option the launcher ends all of them, and another run goes on.
    rm pid.*
    evaluate ended mpirun -n 2 sh rank.sh "$mar" >out 2>err &
    job=$!
    kill_rank_1 ended
    if wait $job; then fail "mpirun ends well though a rank was killed"; fi
    evaluate ended "$mar" >out 2>err || fail "after a killed job: $(cat err)"
    same_numbers ended
fi
echo PASSED
