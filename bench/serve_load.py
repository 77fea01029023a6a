#!/usr/bin/env python3
"""Loads `mar serve` on 127.0.0.1 and compares its images per second with those of `mar generate`.

    bench/serve_load.py build/release/mar [--requests 1000] [--clients 64] [--batch 16] [-- OPTIONS OF BOTH]

Each client makes one request after the other, on a connection of its own each time, every second one as a stream. A
tenth of the requests leave before their answer. The rest must all be answered with whole pictures of their seeds. At
the end no answered image may be missing in the metrics, nothing may wait or run, and the process must have as many
descriptors as before. The requests come in rounds, with a run of `mar generate` before, between and after. A round is
compared with the runs beside it, by images per second and by processor seconds an image, which other load changes
less. Prints a table, and fails if something is lost or leaked."""
import argparse
import asyncio
import base64
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


def generate(mar, images, batch, options):
    """Returns seconds and processor seconds an image of mar generate, the first without loading."""
    began = os.times()
    with tempfile.TemporaryDirectory() as folder:
        command = [mar, "generate", "--class", "0-9", "--num", str(images // 10), "--batch", str(batch), "--out",
                   folder + "/out", "--json", *options]
        record = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    end = os.times()
    used = end.children_user - began.children_user + end.children_system - began.children_system
    return record["seconds"] / record["images"], used / record["images"]


def metric(url, name):
    with urllib.request.urlopen(url + "/metrics") as answer:
        found = re.search("^" + re.escape(name) + " (.*)$", answer.read().decode(), re.MULTILINE)
    return float(found.group(1)) if found else 0


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def processor_s(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(process):
    with open(f"/proc/{process.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024


def whole(body):
    """Returns a chunked body without its chunks."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2:]
    return b"".join(parts)


async def request(port, number, stay_s):
    """Makes request `number`, every second one as a stream; leaves after stay_s seconds unless that is None. Returns the
    seconds of the answer."""
    streams = number % 2 == 1
    fields = {"stream": True, "partial_images": 1} if streams else {}
    body = json.dumps({"prompt": str(number % 10), "seed": number, **fields}).encode()
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(b"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    try:
        if stay_s is not None:
            await asyncio.sleep(stay_s)
            return None
        answer = await reader.read()
    finally:
        writer.close()
    head, _, text = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"request {number}: {answer[:500]}")
    if streams:
        events = [json.loads(line[6:]) for line in whole(text).decode().split("\n") if line.startswith("data: ")]
        finished = [event for event in events if event.get("type") == "image_generation.completed"]
        if len(finished) != 1:
            raise SystemExit(f"request {number}: {len(finished)} images in its stream")
    image = finished[0] if streams else json.loads(text)["data"][0]
    picture = base64.b64decode(image["b64_json"])
    if image["seed"] != number or picture[:8] != b"\x89PNG\r\n\x1a\n" or picture[-8:-4] != b"IEND":
        raise SystemExit(f"request {number}: no whole picture of its seed")
    return time.monotonic() - began


async def load(port, first, requests, clients, leaving):
    """Makes requests first..first+requests-1. Returns the seconds of the answers, and of all."""
    numbers, times = iter(range(first, first + requests)), []
    draw = random.Random(first)
    left = set(draw.sample(range(first, first + requests), int(requests * leaving)))

    async def client():
        for number in numbers:
            seconds = await request(port, number, draw.uniform(0, 0.5) if number in left else None)
            if seconds is not None:
                times.append(seconds)

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    return times, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mar")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--leaving", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    a = parser.parse_args(words[:cut])
    options = words[cut + 1:]
    each = a.requests // a.rounds
    staying = each - int(each * a.leaving)

    process = subprocess.Popen([a.mar, "serve", "--port", "0", "--batch", str(a.batch), *options],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    url = process.stdout.readline().strip()
    port = int(url.rsplit(":", 1)[1])
    warm = 2 * a.batch
    asyncio.run(load(port, 0, warm, a.batch, 0))  # memory and threads of the first batches
    before, resident = descriptors(process), resident_mb(process)
    runs, rounds, times = [generate(a.mar, staying, a.batch, options)], [], []
    for i in range(a.rounds):
        used = processor_s(process)
        answers, seconds = asyncio.run(load(port, i * each, each, a.clients, a.leaving))
        rounds.append((seconds / len(answers), (processor_s(process) - used) / len(answers)))
        times += answers
        runs.append(generate(a.mar, staying, a.batch, options))
    limit = time.monotonic() + 60
    while metric(url, "mar_queue_images") + metric(url, "mar_batch_images") > 0 or descriptors(process) > before:
        if time.monotonic() > limit:
            raise SystemExit(f"leaked: {descriptors(process)} descriptors, {before} before; "
                             f"{metric(url, 'mar_batch_images')} images in progress")
        time.sleep(0.1)
    made = metric(url, 'mar_images_total{end="done"}') - warm
    cancelled = metric(url, 'mar_images_total{end="cancelled"}')
    occupancy = metric(url, "mar_step_images_total") / metric(url, "mar_steps_total")
    grown = resident_mb(process) - resident
    process.terminate()
    status = process.wait(60)

    times.sort()
    beside = [[(runs[i][k] + runs[i + 1][k]) / 2 for i in range(a.rounds)] for k in (0, 1)]
    ratio, ratio_used = (statistics.median(beside[k][i] / rounds[i][k] for i in range(a.rounds)) for k in (0, 1))
    rate, reference = (1 / statistics.median(pair[0] for pair in pairs) for pairs in (rounds, runs))
    print(f"requests {a.rounds * each} of {a.clients} clients in {a.rounds} rounds, {a.rounds * each - len(times)} left "
          f"early; batch {a.batch}; {' '.join(options) or 'default options'}")
    print(f"answered {len(times)}; images made {made:.0f}, cancelled {cancelled:.0f}, left before they were read "
          f"{a.rounds * each - made - cancelled:.0f}")
    print(f"seconds of an answer: median {statistics.median(times):.2f}, 95 % {times[len(times) * 95 // 100]:.2f}, "
          f"longest {times[-1]:.2f}")
    print(f"images in a step {occupancy:.1f}; memory grew by {grown:.1f} MB; exit status {status}")
    print(f"images/s {rate:.1f}, mar generate {reference:.1f}; median ratio of the rounds {ratio:.2f}; "
          f"by processor seconds {ratio_used:.2f}")
    # on a busy machine a client may have left before its request is read, which then is no image of the service's
    if len(times) != a.rounds * staying or made < len(times) or made + cancelled > a.rounds * each or status != 0:
        raise SystemExit("something was lost")


if __name__ == "__main__":
    main()
