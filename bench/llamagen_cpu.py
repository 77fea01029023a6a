#!/usr/bin/env python3
"""Speculation over discrete tokens at LlamaGen's sizes on a processor: time only, since the weights are random.

    for a in gpt_l gpt_b; do python3 tools/dev/random_checkpoint.py --arch $a --seq_len 64 --out build/$a.safetensors; done
    python3 tools/dev/random_checkpoint.py --arch vq16 --out build/vq16.pt
    python3 bench/llamagen_cpu.py --model build/gpt_l.safetensors --draft build/gpt_b.safetensors --vq build/vq16.pt \\
        --out bench/results/llamagen_cpu.json

    python3 tools/dev/random_checkpoint.py --arch t2i_xl --seq_len 64 --out build/t2i_xl.safetensors
    python3 tools/dev/random_checkpoint.py --arch eagle_xl --out build/eagle_xl.bin
    python3 -c "import numpy as n; n.savez('build/captions.npz', features=n.random.default_rng(0).normal(0, 0.1, (1, 120, 2048)))"
    python3 bench/llamagen_cpu.py --model build/t2i_xl.safetensors --eagle build/eagle_xl.bin --vq build/vq16.pt --cfg 7.5 \\
        --options "--captions build/captions.npz --top_k 1000" --only "sjd --window 16" --only "sjd-pac --window 16" \\
        --only "scd --window 16" --only "scd --window 16 --pac_children 4" --only "vanilla --gamma 5 --tree dynamic" \\
        --out bench/results/llamagen_t2i_cpu.json

    python3 tools/dev/random_checkpoint.py --arch lumina_7b --out build/Lumina-mGPT-7B-768
    python3 bench/llamagen_cpu.py --model build/Lumina-mGPT-7B-768 --cfg 3 --only "sjd-pac --window 16" --only "scd --window 16" \\
        --options "--prompt cat --size 128x128 --top_k 2000 --dtype int8" --out bench/results/lumina_cpu.json

Every method is measured by `mar bench`, in turns with plain decoding of the same images: seconds, accepted length, step compression
(tokens of an image over calls of the target for it), the speed in time beside it, and the speed that the floors of its passes
allow: the larger of bytes over measured bandwidth and arithmetic over the measured matrix rate. Laws of random weights are broad, so
that drafts of an unrelated model are accepted now and then; a trained pair accepts more. Images have 64 tokens to make the runs short.
"""

import argparse
import json
import os
import subprocess
import sys

METHODS = [
    "vanilla --gamma 4", "vanilla --tree 4,2,1", "uniform-rsd --gamma 4", "cool-sd-exp --gamma 4", "cool-sd-linear --gamma 4",
    "lantern --gamma 4", "lantern-pp --gamma 4", "lantern-gstar --gamma 4", "lantern-pp-gstar --gamma 4",
    "lantern-pp --tree static",
    "sjd --window 16", "sjd --window 64", "sjd-pac --pac_children 1 --pac_continue off", "sjd-pac --pac_children 1",
    "sjd-pac --pac_continue off", "sjd-pac", "scd", "scd --pac_children 4",
]
JACOBI = ("sjd", "sjd-pac", "scd")  # without a draft model


def measure(arguments):
    command = [arguments.mar, "bench", "--json", "--model", arguments.model, "--cfg", str(arguments.cfg),
               "--repeat", str(arguments.repeat), *arguments.options.split()]
    if arguments.vq:
        command += ["--vq", arguments.vq]

    def run(extra):
        done = subprocess.run(command + extra, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command + extra)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    plain = run([])
    rows = []
    for method in arguments.only or METHODS:
        extra = ["--spec", *method.split()]
        if method.split()[0] not in JACOBI:
            extra += ["--draft", arguments.eagle or arguments.draft]
        found = run(extra)
        keys = ("mean_accepted_length", "step_compression", "speed", "speed_by_floors", "seconds_per_image", "seconds_per_token",
                "memory_floor_seconds_per_token", "plain_seconds_per_image", "target_seconds", "draft_seconds", "verification_seconds")
        rows.append({"method": method, **{k: found[k] for k in keys}})
        print(f"{method}: {rows[-1]['speed']:.2f}x", file=sys.stderr)
    return {"command": " ".join(sys.argv), "model": os.path.basename(arguments.model), "draft": os.path.basename(arguments.eagle or arguments.draft or ""),
            "cfg": arguments.cfg, "backend": plain["backend"], "memory_bandwidth": plain["memory_bandwidth"],
            "matrix_peak": plain["matrix_peak"], "plain": {k: plain[k] for k in ("seconds_per_image", "seconds_per_token", "memory_floor_seconds_per_token",
                                            "target_seconds")},
            "target_passes": plain["target_passes"], "methods": rows}


def table(result):
    print(f"{'drafts':>6} {'rows':>5} {'ms':>8} {'memory':>8} {'products':>8} {'of floor':>8}")
    for p in result["target_passes"]:
        print(f"{p['drafts']:6} {p['rows']:5} {1e3 * p['seconds']:8.2f} {1e3 * p['memory_floor_seconds']:8.2f} "
              f"{1e3 * p['arithmetic_floor_seconds']:8.2f} {100 * p['fraction_of_floor']:7.0f}%")
    print(f"\n{'':44} accepted  steps  speed  floors allow")
    for r in result["methods"]:
        print(f"{r['method']:44} {r['mean_accepted_length']:8.2f} {r['step_compression']:6.2f} {r['speed']:6.2f} "
              f"{r['speed_by_floors']:13.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default="build/release/mar")
    parser.add_argument("--model")
    parser.add_argument("--draft")
    parser.add_argument("--eagle", help="an EAGLE drafter in place of --draft")
    parser.add_argument("--vq")
    parser.add_argument("--options", default="", help="more options of every run")
    parser.add_argument("--only", action="append", help="a method and its options, in place of all methods; may be repeated")
    parser.add_argument("--cfg", type=float, default=2.0)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", help="JSON")
    parser.add_argument("--table", help="print the table of such a file instead")
    arguments = parser.parse_args()
    if arguments.table:
        with open(arguments.table, encoding="utf-8") as f:
            table(json.load(f))
        return
    result = measure(arguments)
    table(result)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
