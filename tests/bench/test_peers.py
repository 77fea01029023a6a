"""bench/peers.py without the programs it runs: quartiles, pairs, and refusals by name."""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import peers  # noqa: E402


def refusal(function, *arguments):
    try:
        function(*arguments)
    except peers.NotRun as why:
        return str(why)
    return "ran"


def main():
    r = peers.ratio([4.0, 6.0, 20.0], [2.0, 2.0, 4.0])
    assert r == {"ratio": 3.0, "quartiles": [2.5, 4.0]}, r
    assert peers.ratio([3.0], [2.0]) == {"ratio": 1.5, "quartiles": [1.5, 1.5]}
    assert peers.paired("libmar int8 x2", "llama.cpp q8_0 x2")
    assert (not peers.paired("libmar int8 x2", "llama.cpp q8_0 x1") and
            not peers.paired("libmar bf16 x2", "llama.cpp q8_0 x2"))
    assert peers.paired("libmar int8", "PyTorch f32-eager")

    nothing = Namespace(llama=None, llamagen=None, spherear="/nowhere/SphereAR")
    assert refusal(peers.source, nothing, "llamagen", "A/B") == "needs --llamagen, a clone of github.com/A/B"
    assert refusal(peers.source, nothing, "spherear", "A/B") == "--spherear /nowhere/SphereAR: no such directory"
    assert "needs --llama" in refusal(peers.llama_pass, nothing, "q8_0", 1)
    assert (refusal(peers.llama_pass, Namespace(llama="/nowhere"), "q8_0", 1) ==
            "/nowhere/llama-batched-bench: no such file")
    assert refusal(peers.run, [sys.executable, "-c", "raise SystemExit('no weights')"]) == "no weights"

    calls = []
    seconds = peers.sit({"libmar f32": lambda: calls.append(1) or 2.0,
                         "official": lambda: peers.source(nothing, "llamagen", "A/B")}, 2)
    assert seconds == {"libmar f32": [2.0, 2.0],
                       "official": "not run: needs --llamagen, a clone of github.com/A/B"}, seconds
    assert peers.compare(seconds) == {} and len(calls) == 2
    assert peers.compare({"libmar f32": [1.0],
                          "PyTorch f32-eager": [2.0]})["PyTorch f32-eager / libmar f32"]["ratio"] == 2.0


main()
