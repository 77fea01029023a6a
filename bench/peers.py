#!/usr/bin/env python3
"""libmar beside PyTorch, llama.cpp and the official codes on this machine: the same shapes, in turns, in one sitting.

    python3 bench/peers.py --llama llama.cpp/build/bin --llamagen LlamaGen --spherear SphereAR \\
        --out bench/results/peers.json
    python3 bench/peers.py --cases mar --num_iter 2 --num_sampling_steps 5 --types f32     # does it run? a minute

Cases, with random weights of tools/dev/random_checkpoint.py (written once, to build/bench):

    mar       seconds an image of MAR-B; PyTorch runs the official loop, and the official code itself
              (bench/pytorch_mar.py)
    trunk     seconds a pass of --layers layers of NextStep-1's trunk, for 1, 2 and 38 sequences; llama.cpp's file has
              the same shapes (qwen2, a vocabulary of 1024), and its q8_0 and q4_0 stand beside int8 and int4
    llamagen  seconds a token of LlamaGen-L with guidance; the official code's decode step (bench/llamagen_torch.py)
    spherear  seconds an image of SphereAR-B without its decoder; the official code (bench/spherear_torch.py)
    harmon    seconds an image of Harmon-0.5B; the official code (bench/harmon_torch.py)

A turn measures each program once. A ratio is the median of theirs over that of ours, with the quartiles of the turns'
own ratios: above 1 libmar is faster. What cannot run has the reason in place of its seconds: "not run: ...".
--llama is a build of the llama.cpp in llama-cpp-python's source: cmake -B build -DLLAMA_CURL=OFF. MAR_ISA,
ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA confine the programs to an instruction set, llama.cpp its build.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ["mar", "trunk", "llamagen", "spherear", "harmon"]
ROWS = [1, 2, 38]
LLAMA_TYPES = {"f32": "f32", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}
PROMPT = "a corgi in the snow"


class NotRun(Exception):
    """Why a program has no seconds."""


def run(command):
    """The JSON on the last line, or all of, a command's standard output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise NotRun((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return json.loads(done.stdout.strip().splitlines()[-1])


def checkpoint(arch, name, *more):
    path = ROOT / "build/bench" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, ROOT / "tools/dev/random_checkpoint.py", "--arch", arch, "--out", path, *more],
                       check=True)
    return path


def source(args, name, repository):
    """The directory of an official code."""
    folder = getattr(args, name)
    if not folder:
        raise NotRun(f"needs --{name}, a clone of github.com/{repository}")
    if not Path(folder).is_dir():
        raise NotRun(f"--{name} {folder}: no such directory")
    return folder


def bench(args, model, dtype, *more):
    return run([args.mar, "bench", "--model", model, "--dtype", dtype, "--threads", args.threads, "--json", *more])


# --- cases: programs by name, each a function that returns the seconds of a turn --------------------------------------


def mar_case(args):
    model, vae = checkpoint("mar_base", "mar_base.pth"), checkpoint("kl16", "kl16.ckpt")
    steps = ["--num_iter", args.num_iter, "--num_sampling_steps", args.num_sampling_steps]

    def torch(config, *more):
        out = run([sys.executable, ROOT / "bench/pytorch_mar.py", "--arch", "mar_base", "--threads", args.threads,
                   *steps, "--configs", config, "--json", *more])
        return out["seconds"][config]["total"]

    def official(config):
        return torch(config, "--source", source(args, "official_mar", "LTH14/mar"))

    programs = {f"libmar {t}": lambda t=t: bench(args, model, t, "--vae", vae, *steps)["seconds_per_image"]
                for t in args.types}
    programs |= {f"PyTorch {config}": lambda config=config: torch(config) for config in args.configs}
    return programs | {f"official {t}": lambda t=t: official(f"{t}-official") for t in ("f32", "amp")}


def trunk_model(args, dtype):
    """A folder of our type: int8 and int4 are converted once."""
    low = ROOT / f"build/bench/trunk{args.layers}-{dtype}"
    model = checkpoint("nextstep_14b", f"trunk{args.layers}", "--depth", str(args.layers))
    if dtype not in ("int8", "int4"):
        return model
    if not low.exists():
        subprocess.run([args.mar, "convert", model, low, "--dtype", dtype], check=True, stdout=subprocess.DEVNULL)
    return low


def trunk_pass(args, dtype, rows):
    """From the difference of two images, by `tokens`: the prompt's pass is in neither. A guided sequence is two rows."""
    batch, cfg = (1, 1) if rows == 1 else (rows // 2, 7.5)
    sides, tokens = ((64, 512), 112) if rows <= 2 else ((64, 160), 24)
    seconds = [bench(args, trunk_model(args, dtype), dtype, "--prompt", PROMPT, "--batch", batch, "--cfg", cfg,
                     "--num_sampling_steps", 3, "--size", f"64x{side}")["decoder_seconds"] * batch for side in sides]
    return (seconds[1] - seconds[0]) / tokens


def llama_file(args, kind):
    """The same shapes as a GGUF file of random weights."""
    path = ROOT / f"build/bench/trunk{args.layers}-{kind}.gguf"
    if path.exists():
        return path
    python = Path(args.llama).resolve().parents[1] / "gguf-py"
    if not python.is_dir():
        raise NotRun(f"{python}: no such directory, expected llama.cpp's gguf-py")
    sys.path.insert(0, str(python))
    import gguf
    import numpy as np
    from gguf.quants import quantize
    width, head, hidden, vocabulary, heads, kv = 5120, 128, 13824, 1024, 40, 8
    kind_id, rng, made = gguf.GGMLQuantizationType[kind.upper()], np.random.default_rng(0), {}
    w = gguf.GGUFWriter(path.with_suffix(".part"), "qwen2")
    w.add_block_count(args.layers), w.add_context_length(4096)
    w.add_embedding_length(width), w.add_feed_forward_length(hidden)
    w.add_head_count(heads), w.add_head_count_kv(kv), w.add_rope_freq_base(1e6), w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(vocabulary), w.add_tokenizer_model("none")

    def matrix(name, out, n_in):
        if (out, n_in) not in made:
            made[out, n_in] = quantize((rng.standard_normal((out, n_in), dtype=np.float32) / n_in ** 0.5), kind_id)
        w.add_tensor(f"{name}.weight", made[out, n_in], raw_dtype=kind_id)

    def vector(name, value, n=width):
        w.add_tensor(name, np.full(n, value, np.float32))

    matrix("token_embd", vocabulary, width), matrix("output", vocabulary, width), vector("output_norm.weight", 1)
    for b in (f"blk.{i}." for i in range(args.layers)):
        vector(b + "attn_norm.weight", 1), vector(b + "ffn_norm.weight", 1)
        for name, n in (("q", heads * head), ("k", kv * head), ("v", kv * head)):
            matrix(f"{b}attn_{name}", n, width), vector(f"{b}attn_{name}.bias", 0, n)
        matrix(b + "attn_output", width, width), matrix(b + "ffn_gate", hidden, width)
        matrix(b + "ffn_up", hidden, width), matrix(b + "ffn_down", width, hidden)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
    path.with_suffix(".part").rename(path)
    return path


def llama_pass(args, kind, rows):
    if not args.llama:
        raise NotRun("needs --llama, the folder with llama-batched-bench")
    program = Path(args.llama) / "llama-batched-bench"
    if not program.is_file():
        raise NotRun(f"{program}: no such file")
    tokens = 112 if rows <= 2 else 24  # twice: the program may end before it has printed the last row
    done = subprocess.run([program, "-m", llama_file(args, kind), "-t", str(args.threads), "-npp", "16",
                           "-ntg", str(tokens), "-npl", f"{rows},{rows}", "-c", str(512 + 64 * rows), "-b", "2048",
                           "-ub", "512"], capture_output=True, text=True)
    lines = [line.split("|") for line in done.stdout.splitlines() if re.match(r"\|\s*\d", line)]
    if done.returncode or not lines:
        raise NotRun((done.stderr.strip().splitlines() or ["no row of the table"])[-1])
    return float(lines[0][7]) / tokens  # T_TG s


def trunk_case(args):
    programs = {}
    for rows in ROWS:
        for t in args.trunk_types:
            kind = LLAMA_TYPES[t]
            programs[f"libmar {t} x{rows}"] = lambda t=t, rows=rows: trunk_pass(args, t, rows)
            programs[f"llama.cpp {kind} x{rows}"] = lambda kind=kind, rows=rows: llama_pass(args, kind, rows)
    return programs


def llamagen_case(args):
    model, vq = checkpoint("gpt_l", "gpt_l_64.pt", "--seq_len", "64"), checkpoint("vq16", "vq16.pt")

    def ours(t):
        out = bench(args, model, t, "--vae", vq, "--seq_len", 64, "--cfg", 4)
        return out["seconds_per_token"]

    def official(config):
        out = run([sys.executable, ROOT / "bench/llamagen_torch.py",
                   "--source", source(args, "llamagen", "FoundationVision/LlamaGen"),
                   "--threads", args.threads, "--configs", config, "--cfg", 4, "--rounds", 1, "--json"])
        if not out["results"]:
            raise NotRun(f"{config} failed")
        return out["results"][0]["median_seconds"]

    return ({f"libmar {t}": lambda t=t: ours(t) for t in args.types} |
            {f"official {config}": lambda config=config: official(config) for config in args.configs})


def spherear_case(args):
    model = checkpoint("spherear_b", "spherear_b.pt")

    def ours(t):
        out = bench(args, model, t, "--cfg", 4.5, "--num_sampling_steps", args.num_sampling_steps)
        return out["seconds_per_image"] - out["vae_seconds"]

    def official(config):
        seconds = run([sys.executable, ROOT / "bench/spherear_torch.py",
                       "--source", source(args, "spherear", "guolinke/SphereAR"), "--threads", args.threads,
                       "--configs", config, "--steps", args.num_sampling_steps, "--tokens", 2, "--rounds", 1,
                       "--json"])["seconds"][config]
        return seconds["total"] - seconds["decoder"]

    return ({f"libmar {t}": lambda t=t: ours(t) for t in args.types} |
            {f"official {config}": lambda config=config: official(config) for config in args.configs})


def harmon_case(args):
    model = checkpoint("harmon_0.5b", "Harmon-0_5B")

    def turn(*options):
        command = [sys.executable, ROOT / "bench/harmon_torch.py", "--source", source(args, "harmon", "wusize/Harmon"),
                   "--model", model, "--threads", args.threads, "--num_iter", args.num_iter,
                   "--sets", min(2, args.num_iter)]
        return run([*command, *options])["seconds"]["total"]

    def ours(t):
        return bench(args, model, t, "--prompt", PROMPT, "--cfg", 3, "--cfg_schedule", "constant",
                     "--num_iter", args.num_iter, "--size", "512x512")["seconds_per_image"]

    return ({f"libmar {t}": lambda t=t: ours(t) for t in args.types} |
            {f"official {config}": lambda config=config: turn("--measure", config.removesuffix("-eager"))
             for config in args.configs})


# --- the sitting ------------------------------------------------------------------------------------------------------


def ratio(theirs, ours):
    """The ratio of the medians, and the quartiles of the turns' ratios."""
    each = sorted(b / a for a, b in zip(ours, theirs))
    low, _, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    return {"ratio": statistics.median(theirs) / statistics.median(ours), "quartiles": [low, high]}


def paired(ours, theirs):
    """1 if the two are compared: of the trunk the same rows, and types that store as many bits."""
    if not theirs.startswith("llama.cpp"):
        return True
    _, t, rows = ours.split()
    return theirs.split()[1:] == [LLAMA_TYPES[t], rows]


def sit(programs, turns):
    """Seconds of each turn by program, or "not run: ..."."""
    seconds = {}
    for turn in range(turns):
        for name, measure in programs.items():
            if isinstance(seconds.get(name), str):
                continue
            try:
                seconds.setdefault(name, []).append(measure())
                print(f"  {name:24} {seconds[name][-1]:.4f} s", flush=True)
            except NotRun as why:
                seconds[name] = f"not run: {why}"
                print(f"  {name:24} {seconds[name]}", flush=True)
    return seconds


def compare(seconds):
    ran = {name: s for name, s in seconds.items() if not isinstance(s, str)}
    ours = [name for name in ran if name.startswith("libmar")]
    return {f"{theirs} / {mine}": ratio(ran[theirs], ran[mine])
            for theirs in ran if theirs not in ours for mine in ours if paired(mine, theirs)}


def machine(args):
    info = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:(.*)$", info, re.M)[1].split()) if "flags" in info else set()
    name = re.search(r"^model name\s*:\s*(.*)$", info, re.M)
    known = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"]
    return {"processor": name[1] if name else os.uname().machine, "cores": os.cpu_count(), "threads": args.threads,
            "sets": [flag for flag in known if flag in flags], "load": os.getloadavg()[0],
            "environment": {key: os.environ[key] for key in ("MAR_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
                            if key in os.environ},
            "date": datetime.date.today().isoformat()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mar", default=ROOT / "build/release/mar", help="the command [build/release/mar]")
    parser.add_argument("--cases", default="mar,trunk,llamagen,spherear,harmon", help="by commas [all]")
    parser.add_argument("--types", default="f32,bf16,int8", help="of libmar [f32,bf16,int8]")
    parser.add_argument("--trunk_types", default="f32,bf16,int8,int4",
                        help="of libmar in the case trunk [f32,bf16,int8,int4]")
    parser.add_argument("--configs", default="f32-eager,bf16-eager",
                        help="of PyTorch and the official codes [f32-eager,bf16-eager]")
    parser.add_argument("--num_iter", type=int, default=4, help="MAR, Harmon: autoregressive steps [4]")
    parser.add_argument("--num_sampling_steps", type=int, default=100, help="MAR, SphereAR: steps of the head [100]")
    parser.add_argument("--layers", type=int, default=2, help="of the trunk [2]")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama", help="folder with llama-batched-bench, two levels below llama.cpp's source")
    for name, repository in (("official_mar", "LTH14/mar"), ("llamagen", "FoundationVision/LlamaGen"),
                             ("spherear", "guolinke/SphereAR"),
                             ("harmon", "wusize/Harmon")):
        parser.add_argument(f"--{name}", metavar="DIR", help=f"a clone of github.com/{repository}")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures; cases in it that do not run stay")
    args = parser.parse_args()
    for name in ("types", "trunk_types", "configs", "cases"):
        setattr(args, name, getattr(args, name).split(","))
    for names, known in ((args.cases, CASES), (args.types + args.trunk_types, list(LLAMA_TYPES))):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    if args.turns < 1:
        parser.error(f"--turns {args.turns}: expected 1 or more")
    options = [Path(a).name if "/" in a and i and sys.argv[i].startswith("--") and sys.argv[i] != "--out" else a
               for i, a in enumerate(sys.argv[1:])]  # no paths of this machine
    result = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    command = " ".join(["python3 bench/peers.py", *options])
    for case in args.cases:
        print(case, flush=True)
        sitting = {"command": command, "machine": machine(args)}
        try:
            seconds = sit(globals()[f"{case}_case"](args), args.turns)
        except subprocess.CalledProcessError as failed:
            sys.exit(f"{case}: {failed}")
        result[case] = sitting | {"seconds": seconds, "ratios": compare(seconds)}
        for name, r in result[case]["ratios"].items():
            print(f"{name:48} {r['ratio']:.2f} ({r['quartiles'][0]:.2f} to {r['quartiles'][1]:.2f})", flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
