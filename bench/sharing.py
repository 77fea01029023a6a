#!/usr/bin/env python3
"""What runs of `mar generate` cost one another and other processes on this machine, of one build or of two in turns.

    python3 bench/sharing.py                                       # build/release/mar
    python3 bench/sharing.py --before old/build/release/mar --model mar_base.safetensors
    python3 bench/sharing.py --example build/examples/threads      # sessions of one model, too

For each build and round: ten images of the demo alone, beside one busy process, two such runs at once, four, and one with
four times as many threads as cores. With --model also `mar bench` alone at batch 1, and at batch 16 in 2 x 25 steps. With --example (the program
examples/threads.c) also 1, 2, 4 and 8 sessions of one model. Everything is a ratio within a round; the table has medians and
extremes. Nothing else should run on the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLASSES = "0,1,2,3,4,5,6,7,8,9"


def generate(mar, copies=1, options=()):
    """Seconds that each of so many runs at once takes, from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        runs = [subprocess.Popen([mar, "generate", "--class", CLASSES, "--num", "1", "--quiet", "--out",
                                  f"{folder}/{i}.png", *options]) for i in range(copies)]
        seconds = {}
        while len(seconds) < copies:
            pid, status, _ = os.wait4(-1, 0)
            if status:
                sys.exit(f"{mar}: exit status {status}")
            seconds[pid] = time.monotonic() - start
        for run in runs:
            run.returncode = 0
        return list(seconds.values())


def beside_busy(mar):
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(0.2)
    try:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([mar, "generate", "--class", CLASSES, "--num", "1", "--quiet", "--out", f"{folder}/0.png"],
                           check=True)
        return [time.monotonic() - start]
    finally:
        busy.kill()
        busy.wait()


def bench(mar, model, batch):
    """Seconds per image; of a large batch in fewer steps, which take long enough."""
    steps = () if batch == 1 else ("--num_iter", "2", "--num_sampling_steps", "25")
    output = subprocess.run([mar, "bench", "--model", model, "--batch", str(batch), *steps, "--json"],
                            check=True, stdout=subprocess.PIPE).stdout
    return json.loads(output)["seconds_per_image"]


def sessions(example, count, requests):
    """Images per second of so many sessions."""
    with tempfile.TemporaryDirectory() as folder:
        line = subprocess.run([example, str(count), str(requests), folder], check=True, stdout=subprocess.PIPE,
                              text=True).stdout
    return requests / float(line.split(" in ")[1].split()[0])


def show(name, values, unit=""):
    print(f"{name:44} {statistics.median(values):8.3f}{unit}  ({min(values):.3f} to {max(values):.3f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=str(ROOT / "build/release/mar"), help="the command [build/release/mar]")
    parser.add_argument("--before", help="the command of an older build, to compare with")
    parser.add_argument("--model", help="a checkpoint for mar bench, from tools/dev/random_checkpoint.py")
    parser.add_argument("--example", help="examples/threads.c, built")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="also write everything as JSON to this file")
    args = parser.parse_args()
    builds = ({"before": args.before} if args.before else {}) | {"now": args.mar}
    cores = len(os.sched_getaffinity(0))
    record = {"cores": cores, "rounds": args.rounds, "seconds": {}}

    def note(what, build, seconds):
        record["seconds"].setdefault(f"{what}, {build}", []).append(seconds)

    for _ in range(args.rounds):
        for build, mar in builds.items():
            note("alone", build, max(generate(mar)))
        for build, mar in builds.items():
            note("beside a busy process", build, max(beside_busy(mar)))
            note("two at once", build, max(generate(mar, 2)))
            note("four at once", build, max(generate(mar, 4)))
            note(f"{4 * cores} threads", build, max(generate(mar, 1, ("--threads", str(4 * cores)))))
    for build in builds:
        alone = record["seconds"][f"alone, {build}"]
        show(f"demo alone, {build}", alone, " s")
        for what in ("beside a busy process", "two at once", "four at once", f"{4 * cores} threads"):
            slowest = record["seconds"][f"{what}, {build}"]
            show(f"  {what} / alone, {build}", [a / b for a, b in zip(slowest, alone)])
    if args.before:
        show("demo alone, now / before", [now / before for now, before in zip(record["seconds"]["alone, now"],
                                                                             record["seconds"]["alone, before"])])
    for batch in (1, 16) if args.model else ():
        for _ in range(args.rounds):
            for build, mar in builds.items():
                note(f"bench, batch {batch}", build, bench(mar, args.model, batch))
        for build in builds:
            show(f"{Path(args.model).stem}, batch {batch}, {build}",
                 record["seconds"][f"bench, batch {batch}, {build}"], " s an image")
        if args.before:
            show(f"{Path(args.model).stem}, batch {batch}, now / before",
                 [now / before for now, before in zip(record["seconds"][f"bench, batch {batch}, now"],
                                                      record["seconds"][f"bench, batch {batch}, before"])])
    if args.example:
        rates = {count: [] for count in (1, 2, 4, 8)}
        for _ in range(args.rounds):
            for count in rates:
                rates[count].append(sessions(args.example, count, 40))
        show("demo, images a second of 1 session", rates[1])
        for count in (2, 4, 8):
            show(f"  {count} sessions / 1", [a / b for a, b in zip(rates[count], rates[1])])
        record["images_per_second"] = rates
    if args.out:
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
