#!/usr/bin/env python3
"""Seconds an image of one session, and of two with half its batch each on two threads, in turns, for the same images.

    MAR_LIBRARY=build/cuda/libmar.so PYTHONPATH=python python3 bench/gpu/two_threads.py --model mar_base.pth --vae kl16.ckpt

With two, one session's head runs under the other's transformer. Each has its queue; the first turn, in which products are
planned and steps recorded, does not count.
"""

import argparse
import json
import threading
import time
from pathlib import Path

import mar

CLASSES = 10  # every model has


def make_images(session, first, images):
    requests = [session.submit(label=(first + i) % CLASSES, seed=0, image=first + i) for i in range(images)]
    while session.pending:
        session.step()
    for request in requests:
        session.take(request)


def seconds(sessions, images):
    """Of all images, each session making its share on a thread of its own."""
    threads = [threading.Thread(target=make_images, args=(session, i * images, images)) for i, session in enumerate(sessions)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--vae", help="default: the model's own")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu [cuda]")
    parser.add_argument("--batch", type=int, default=64, help="images at a time, of all sessions together [64]")
    parser.add_argument("--num_iter", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3, help="the best of all but the first counts [3]")
    parser.add_argument("--out", type=Path, help="JSON file of the result")
    args = parser.parse_args()
    model = mar.load(args.model, args.vae, device=args.device)
    one = [model.session(args.batch, num_iter=args.num_iter)]
    two = [model.session(args.batch // 2, num_iter=args.num_iter) for _ in range(2)]
    best = {"one_thread_seconds_per_image": None, "two_threads_seconds_per_image": None}
    for turn in range(args.turns):
        for name, sessions in zip(best, (one, two)):
            each = seconds(sessions, args.batch // len(sessions)) / args.batch
            print(f"turn {turn}, {len(sessions)} of {args.batch // len(sessions)}: {each:.4f} s an image", flush=True)
            if turn > 0:
                best[name] = min(each, best[name] or each)
    record = {"backend": model.backend, "batch": args.batch, **best}
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
