#!/usr/bin/env python3
"""Speculation across tokens by whole paths on the demo: the figures of the continuous speculative decoding paper, for it.

    python3 bench/path_figures.py --out bench/results/path_figures.json    # measures, and draws
    python3 bench/path_figures.py --draw bench/results/path_figures.json   # only draws

docs/pictures/path_acceptance.svg: acceptance by autoregressive step, by lateness and by gamma, of steps that counted (the paper's Figures
8, 11 and 13). docs/pictures/path_speed.svg: passes in sequence by gamma, and how many times as fast, measured and by the walltime formula
(Eq. 35). Acceptance is that of --num images of each run, batches of 20. Passes and seconds are those of --num_single images one at a
time, on one thread; seconds are the processor's, less those of a run that does next to nothing, so that other work on the machine
matters little. The table also has candidates a verified token, the paper's Figure 15: in theory 1, whatever the drafts.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLASSES = "0,1,2,3,4,5,6,7,8,9"
GAMMAS = (1, 2, 4, 8, 16, 32)  # one image at a time
MANY_IMAGES = (2, 8, 32)  # gammas of the runs of many images
STEPS = 64
PATH = ("--spec", "path", "--draft", "self")

# --- what is measured ------------------------------------------------------------------------------------------------


def generate(mar, num, batch, *options):
    """The record of a run of so many images, and the processor's seconds of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [mar, "generate", "--class", CLASSES, "--num", num // 10, "--batch", batch, "--threads", 1, "--json", "--quiet",
                   "--out", folder, *options]
        with open(f"{folder}/record.json", "w") as out:
            run = subprocess.Popen([str(part) for part in command], stdout=out)
            _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode:
            raise SystemExit(f"{' '.join(str(part) for part in command)}: exit status {run.returncode}")
        return json.loads(Path(f"{folder}/record.json").read_text()), usage.ru_utime + usage.ru_stime


KEPT = ("acceptance_rate", "acceptance_per_step", "acceptance_per_lateness", "passes_in_sequence", "head_calls_in_sequence",
        "mean_round_steps", "residual_tries", "accepted_shift")


def measure(args):
    """Runs by name; `images`, what the record says, and seconds an image of those that were made one at a time."""
    results = {"images": args.num, "images_single": args.num_single, "acceptance": {}, "single": {}}
    for name, options in acceptance_runs().items():
        print(name, flush=True)
        record, _ = generate(args.mar, args.num, 20, *options)
        results["backend"] = record["backend"]
        results["acceptance"][name] = {k: record.get(k) for k in KEPT}
    _, nothing = generate(args.mar, 10, 1, "--num_iter", 1, "--num_sampling_steps", 2)
    for name, options in single_runs().items():
        print(name, flush=True)
        record, seconds = generate(args.mar, args.num_single, 1, *options)
        row = {k: record.get(k) for k in KEPT if not k.endswith(("_step", "_lateness"))}
        for k in ("passes_in_sequence", "head_calls_in_sequence"):
            row[k] /= args.num_single
        results["single"][name] = row | {"seconds": (seconds - nothing) / args.num_single}
    return results


def acceptance_runs():
    runs = {f"gamma {g}": (*PATH, "--gamma", g) for g in MANY_IMAGES}
    runs |= {f"gamma {g}, no guidance": (*PATH, "--gamma", g, "--cfg", 1) for g in MANY_IMAGES}
    return runs | {"gamma 8, 16 steps": (*PATH, "--gamma", 8, "--num_iter", 16)}


def single_runs():
    runs = {"plain": (), "plain, head_spec 8": ("--head_spec", 8)}
    runs |= {f"gamma {g}": (*PATH, "--gamma", g) for g in GAMMAS}
    return runs | {f"gamma {g}, head_spec 8": (*PATH, "--gamma", g, "--head_spec", 8) for g in GAMMAS}


# --- the walltime formula ----------------------------------------------------------------------------------------------


def steps_a_round(alpha, gamma):
    """Eq. 35 without its cost. The paper's round has gamma drafts and one token of the target; ours has gamma contexts and so at
    most gamma steps, of which the first always counts: gamma - 1 in place of gamma."""
    return gamma if alpha == 1 else (1 - alpha ** gamma) / (1 - alpha)


def context_cost(single, plain, row, gamma):
    """c of Eq. 35: what each further context of a round costs, as a part of a plain step."""
    seconds_a_round = single[row]["seconds"] / single[row]["passes_in_sequence"]
    return (seconds_a_round / (single[plain]["seconds"] / STEPS) - 1) / (gamma - 1)


# --- pictures --------------------------------------------------------------------------------------------------------

STYLE = ("text{font:12px system-ui,sans-serif;fill:#1d2530}.axis{stroke:#9aa3af}.grid{stroke:#e6e9ee}"
         "polyline{fill:none;stroke-width:2}.title{font-weight:600}")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 50, 12, 30, 46, 330, 260


class Panel:
    """Axes, lines and points; `low` and `high` are (x, y); x may be logarithmic."""

    def __init__(self, column, row, title, x_label, low, high, x_ticks, y_ticks, x_log=False):
        import math
        self.x0, self.y0 = column * WIDTH, row * HEIGHT
        self.scale = math.log if x_log else float
        self.low, self.high, self.parts, self.labels = low, high, [], 0
        bottom, right = self.y0 + HEIGHT - BOTTOM, self.x0 + WIDTH - RIGHT
        self.text(self.x0 + LEFT, self.y0 + 18, title, cls="title")
        for x in x_ticks:
            self.line("grid", self.x(x), self.y0 + TOP, self.x(x), bottom)
            self.text(self.x(x), bottom + 16, f"{x:g}", "middle")
        for y in y_ticks:
            self.line("grid", self.x0 + LEFT, self.y(y), right, self.y(y))
            self.text(self.x0 + LEFT - 6, self.y(y) + 4, f"{y:g}", "end")
        self.line("axis", self.x0 + LEFT, bottom, right, bottom)
        self.line("axis", self.x0 + LEFT, self.y0 + TOP, self.x0 + LEFT, bottom)
        self.text((self.x0 + LEFT + right) / 2, bottom + 36, x_label, "middle")

    def x(self, v):
        part = (self.scale(v) - self.scale(self.low[0])) / (self.scale(self.high[0]) - self.scale(self.low[0]))
        return self.x0 + LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, v):
        return self.y0 + HEIGHT - BOTTOM - (v - self.low[1]) / (self.high[1] - self.low[1]) * (HEIGHT - TOP - BOTTOM)

    def text(self, x, y, text, anchor="start", cls=None):
        style = f' class="{cls}"' if cls else ""
        self.parts.append(f'<text{style} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>')

    def line(self, cls, x1, y1, x2, y2):
        self.parts.append(f'<line class="{cls}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def curve(self, colour, points, label, dashes=False, dots=True, at=(0, 0)):
        """A line through the points, with its label in the corner `at`: (0 left, 1 right; lines from the top, or below 0 from
        the bottom)."""
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashes else ""
        self.parts.append(f'<polyline stroke="{colour}"{dash} points="{places}"/>')
        if dots:
            self.parts += [f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.8" fill="{colour}"/>' for x, y in points]
        right, row = at
        y = self.y0 + TOP + 14 + 15 * row if row >= 0 else self.y0 + HEIGHT - BOTTOM + 9 + 15 * row
        x = self.x0 + WIDTH - RIGHT - 4 if right else self.x0 + LEFT + 8
        self.parts.append(f'<text x="{x}" y="{y:.1f}" text-anchor="{"end" if right else "start"}" style="fill:{colour}">'
                          f'{"- - " if dashes else ""}{label}</text>')


def write(path, title, columns, rows, panels):
    width, height = columns * WIDTH, rows * HEIGHT
    body = "\n".join("".join(p.parts) for p in panels)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
                    f'<title>{title}</title><style>{STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n')
    print(path)


def smoothed(values, width):
    """Means of so many neighbours: (step, value)."""
    points = []
    for first in range(0, len(values), width):
        some = [(i, v) for i, v in enumerate(values[first:first + width], first) if v is not None]
        if some:
            points.append((sum(i for i, _ in some) / len(some), sum(v for _, v in some) / len(some)))
    return points


def draw_acceptance(results, path):
    runs, floor = results["acceptance"], 0.4
    ticks = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
    by_step = Panel(0, 0, "Accepted, by autoregressive step", "step (means of 4)", (0, floor), (STEPS, 1), range(0, 65, 16), ticks)
    for i, g in enumerate(MANY_IMAGES):
        by_step.curve(COLOURS[i], smoothed(runs[f"gamma {g}"]["acceptance_per_step"], 4), f"gamma {g}", dots=False, at=(0, i - 3))
    late = Panel(1, 0, "Accepted, by lateness", "steps that the draft's conditions are late", (1, floor), (16, 1), (1, 2, 4, 8, 16),
                 ticks, x_log=True)
    for i, (name, label, steps) in enumerate((("gamma 32", "guidance 2.9", 64), ("gamma 32, no guidance", "no guidance", 64),
                                              ("gamma 8, 16 steps", "guidance 2.9, 16 steps", 16))):
        rates = runs[name]["acceptance_per_lateness"][:steps // 4 + 1]  # hardly a round comes further
        points = [(k, v) for k, v in enumerate(rates) if v is not None and k & (k - 1) == 0]
        late.curve(COLOURS[i], points, label, at=(0, i - 3))
    gamma = Panel(2, 0, "Accepted, by gamma", "gamma", (2, floor), (32, 1), GAMMAS[1:], ticks, x_log=True)
    for i, (suffix, label) in enumerate((("", "guidance 2.9"), (", no guidance", "no guidance"))):
        gamma.curve(COLOURS[i], [(g, runs[f"gamma {g}{suffix}"]["acceptance_rate"]) for g in MANY_IMAGES], label, at=(0, i - 2))
    write(path, "Acceptance of whole paths on the demo", 3, 1, [by_step, late, gamma])


def draw_speed(results, path):
    single = results["single"]
    passes = Panel(0, 0, "Passes in sequence, an image", "gamma", (1, 0), (32, 70), GAMMAS, range(0, 71, 10), x_log=True)
    alpha = {g: single[f"gamma {g}"]["acceptance_rate"] for g in GAMMAS}
    passes.curve(COLOURS[0], [(g, single[f"gamma {g}"]["passes_in_sequence"]) for g in GAMMAS], "measured", at=(1, 0))
    passes.curve(COLOURS[1], [(g, STEPS / steps_a_round(alpha[g], g)) for g in GAMMAS], "Eq. 35, drafts for nothing", dashes=True,
                 dots=False, at=(1, 1))
    panels = [passes]
    for column, suffix, title in ((1, "", "Times as fast as plain"), (2, ", head_spec 8", "The same, head_spec 8 in both")):
        plain = single[f"plain{suffix}"]
        c = context_cost(single, f"plain{suffix}", f"gamma 8{suffix}", 8)
        measured = [(g, plain["seconds"] / single[f"gamma {g}{suffix}"]["seconds"]) for g in GAMMAS]
        formula = [(g, steps_a_round(alpha[g], g) / (1 + (g - 1) * c)) for g in GAMMAS]
        top = max(1.0, max(v for _, v in measured + formula)) * 1.25
        panel = Panel(column, 0, title, "gamma", (1, 0), (32, top), GAMMAS, [i / 5 for i in range(int(top * 5) + 1)], x_log=True)
        panel.curve(COLOURS[0], measured, "measured, processor's seconds", at=(1, 0))
        panel.curve(COLOURS[1], formula, f"Eq. 35, c = {c:.2f}", dashes=True, dots=False, at=(1, 1))
        panels.append(panel)
    write(path, "Passes and time of speculation by whole paths on the demo", 3, 1, panels)


def print_table(results):
    single = results["single"]
    print(f"{results['images_single']} images one at a time, one thread, {results['backend']}\n")
    print("| run | accepted | passes | Eq. 35's passes | head calls | candidates a verified token | processor's s/image | "
          "times as fast as plain |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, row in single.items():
        plain = single["plain, head_spec 8" if "head_spec" in name else "plain"]
        gamma = int(name.split(",")[0].split()[1]) if name.startswith("gamma") else 0
        expected = f"{STEPS / steps_a_round(row['acceptance_rate'], gamma):.1f}" if gamma else ""
        accepted = f"{row['acceptance_rate']:.3f}" if gamma else ""
        # inside the head residuals are drawn, too, and counted together; the first step needs no verdict
        counted = gamma and "head_spec" not in name
        candidates = f"{row['residual_tries'] / results['images_single'] / (STEPS - 1):.2f}" if counted else ""
        print(f"| {name} | {accepted} | {row['passes_in_sequence']:.1f} | {expected} | {row['head_calls_in_sequence']:.0f} | "
              f"{candidates} | {row['seconds']:.3f} | {plain['seconds'] / row['seconds']:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--num", type=int, default=200, help="images of a run for acceptance, a multiple of 10 [200]")
    parser.add_argument("--num_single", type=int, default=20, help="images made one at a time, a multiple of 10 [20]")
    parser.add_argument("--out", help="write what was measured to this file")
    parser.add_argument("--draw", help="only draw from such a file")
    parser.add_argument("--pictures", default=str(ROOT / "docs/pictures"), help="where the pictures go")
    args = parser.parse_args()
    results = json.loads(Path(args.draw).read_text()) if args.draw else measure(args)
    if args.out:
        Path(args.out).write_text(json.dumps(results) + "\n")
    draw_acceptance(results, Path(args.pictures) / "path_acceptance.svg")
    draw_speed(results, Path(args.pictures) / "path_speed.svg")
    print_table(results)


if __name__ == "__main__":
    main()
