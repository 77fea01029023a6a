"""The project's random numbers in numpy: Philox4x32-10 at addresses (kernels/rng.h), written independently of the C."""

import numpy as np

INIT, STEP, ORDER = 0, 1, 2


def philox(seed, counter):
    """counter: uint32 [..., 4] -> uint32 [..., 4]"""
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c[0]
        p1 = np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]), p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]), p0 & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=-1).astype(np.uint32)


def counters(purpose, image, position, step, blocks):
    c = np.zeros((blocks, 4), np.uint32)
    c[:, 0] = (step << 16) | np.arange(blocks)
    c[:, 1] = (purpose << 24) | position
    c[:, 2] = image & 0xFFFFFFFF
    c[:, 3] = image >> 32
    return c


def normals(seed, purpose, image, position, step, channels):
    """float32 [channels]"""
    words = philox(seed, counters(purpose, image, position, step, (channels + 3) // 4)).astype(np.float64)
    u = (words + 0.5) / 2.0 ** 32
    radius, angle = np.sqrt(-2 * np.log(u[:, 0::2])), 2 * np.pi * u[:, 1::2]
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return z.reshape(-1)[:channels].astype(np.float32)


def random_order(seed, image, n):
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        w = philox(seed, counters(ORDER, image, i, 0, 1))[0]
        j = (((int(w[0]) << 32) | int(w[1])) * (i + 1)) >> 64
        order[i], order[j] = order[j], order[i]
    return np.array(order)
