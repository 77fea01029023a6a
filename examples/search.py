#!/usr/bin/env python3
"""Finds the fastest options at each distance, for a model on this machine:

    python3 examples/search.py --model mar_base.safetensors --images 100 --batch 4 --classes 1,207,360,933

Every combination of the alternatives in AXES makes the images of the same seeds and classes as plain sampling. Its
distance is mar.energy_distance. Plain sampling makes a batch again beside each combination: other load on the machine
slows both. To compare one combination, Model.compare is shorter.
"""

import argparse
import itertools
import time

import mar
import numpy as np

# Options of mar.load ("dtype") and of a session. None: the model's default.
AXES = [
    [{}, {"num_iter": 32}, {"num_iter": 16}, {"num_iter": 8}],
    [{}, {"num_sampling_steps": 25}, {"diff_annealing": "linear"}, {"sampler": "dpmpp", "num_sampling_steps": 20}],
    [{}, {"dtype": "int8"}],
]


def sample(args, options, images, seed=0):
    """Returns the tokens [images, positions, channels] and the seconds per image."""
    load = {"dtype": options["dtype"]} if "dtype" in options else {}
    params = args.plain | {name: value for name, value in options.items() if name != "dtype"}
    session = mar.load(args.model, **load).session(args.batch, **params)
    begun = time.monotonic()
    requests = [session.submit(args.classes[i % len(args.classes)], seed=seed, image=i) for i in range(images)]
    while session.pending:
        session.step()
    seconds = time.monotonic() - begun
    return np.stack([session.take_tokens(request) for request in requests]), seconds / images


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--classes", type=lambda text: list(map(int, text.split(","))), default=list(range(10)))
    parser.add_argument("--plain", type=lambda text: dict(option.split("=") for option in text.split(",")), default={},
                        help="options of plain sampling, such as cfg=2.9,num_iter=64")
    args = parser.parse_args()
    reference, _ = sample(args, {}, args.images)
    other = mar.energy_distance(sample(args, {}, args.images, seed=1)[0], reference)
    found = []
    for choice in itertools.product(*AXES):
        options = {name: value for part in choice for name, value in part.items()}
        if options:
            tokens, seconds = sample(args, options, args.images)
            speed = sample(args, {}, args.batch)[1] / seconds
            found.append((speed, mar.energy_distance(tokens, reference), options))
    print(f"another seed of plain sampling is at {other:.4f}\n   speed  distance  options")
    for speed, distance, options in sorted(found, key=lambda row: -row[0]):
        front = all(s <= speed or d > distance for s, d, _ in found)
        print(f"{speed:7.2f}x  {distance:8.4f}  {'*' if front else ' '} {options}")
    print("* no other combination is as fast and as near")


if __name__ == "__main__":
    main()
