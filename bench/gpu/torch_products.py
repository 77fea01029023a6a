#!/usr/bin/env python3
"""What PyTorch's attention and matrix products take on this GPU at MAR-B's shapes in batches of 64, with guidance.

    python3 bench/gpu/torch_products.py --out products.json

Attention is scaled_dot_product_attention of 128 x 12 heads x 320 tokens x 64 channels in bf16; the products are those of
40960 rows with K = 768. Beside ours (docs/gpu.md, "MAR") they say whether attention and products can be faster.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F

BATCH, HEADS, TOKENS, CHANNELS = 128, 12, 320, 64
ROWS, WIDTH = BATCH * TOKENS, HEADS * CHANNELS


def seconds(operation, times=50):
    """Of one call, the best of five rounds behind one that does not count."""
    best = None
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            operation()
        end.record()
        torch.cuda.synchronize()
        each = start.elapsed_time(end) / 1e3 / times
        best = each if best is None else min(best, each)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of the result")
    args = parser.parse_args()
    made = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = (torch.randn(BATCH, HEADS, TOKENS, CHANNELS, **made) for _ in range(3))
    sdpa = seconds(lambda: F.scaled_dot_product_attention(q, k, v))
    record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "sdpa_us": sdpa * 1e6,
              "sdpa_tflops": 4 * BATCH * HEADS * TOKENS * TOKENS * CHANNELS / sdpa / 1e12}
    x, best = torch.randn(ROWS, WIDTH, **made), 0
    for out in (WIDTH, 3 * WIDTH, 4 * WIDTH):
        weight = torch.randn(out, WIDTH, **made) / WIDTH**0.5
        rate = 2 * ROWS * WIDTH * out / seconds(lambda: F.linear(x, weight)) / 1e12
        record[f"matmul_{out}_tflops"] = rate
        best = max(best, rate)
    record["matmul_tflops"] = best
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
