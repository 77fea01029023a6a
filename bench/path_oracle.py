#!/usr/bin/env python3
"""How often a draft model's whole paths are accepted, in PyTorch: what `--spec path --draft FILE` must come to.

    python3 bench/path_oracle.py --draft weights/demo/draft.safetensors --cfg 2.9 --context full

The target makes images by itself. At each autoregressive step after the prefill the draft sees the same known tokens and
draws its own paths x_T .. x_1; both heads are evaluated at the paths' states, and the estimate is the mean of
min(1, P/Q). In context prefix the draft makes --gamma steps by itself and the target's one condition for each of their
tokens is that of the known tokens before them, as is the law its images then have. In context full every step has its
own known tokens, so --gamma has no influence.
"""

import argparse
import itertools
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/reference"))

from pymar import Schedule, generation_plan, load_mar, sample_chain  # noqa: E402


class Law:
    """A model with guidance: conditions of tokens, and the Gaussians of their chains."""

    def __init__(self, path, labels, guided):
        self.model, self.guided = load_mar(path), guided
        y = self.model.class_embedding(labels)
        self.y = torch.cat([y, self.model.fake_latent.expand_as(y)]) if guided else y

    def twice(self, x):
        return torch.cat([x, x]) if self.guided else x

    def z(self, tokens, mask, predict):
        """tokens [B,L,C], mask and predict [B,L] -> [conditions * N,W] of the N tokens to predict."""
        mask2 = self.twice(mask)
        return self.model.decode(self.model.encode(self.twice(tokens), mask2, self.y), mask2)[self.twice(predict)]

    def head(self, z, scale):
        if not self.guided:
            return lambda x, t: self.model.head(x, t, z)
        return lambda x, t: self.model.head.guided(x, t, z, scale)

    def path(self, z, scale, schedule):
        """Draws N tokens: their states [T+1,N,C] from x_T to x_0."""
        shape = len(z) // (2 if self.guided else 1), self.model.config.token_dim
        states = [torch.randn(shape)]
        sample_chain(schedule, self.head(z, scale), states[0], torch.randn(schedule.steps, *shape), trace=states)
        return torch.stack(states)

    def log_density(self, states, z, scale, schedule):
        """[N] of the noisy transitions of paths [T+1,N,C]; the constant that all laws share is left out."""
        head, total = self.head(z, scale), torch.zeros(states.shape[1], dtype=torch.float64)
        for state, after, i in zip(states, states[1:], range(schedule.steps - 1, 0, -1)):
            eps, v = head(state, schedule.t[i].expand(len(state))).chunk(2, dim=-1)
            mean, log_var, _ = schedule.posterior(eps, v, state, i)
            total -= 0.5 * (log_var + (after - mean) ** 2 * torch.exp(-log_var)).double().sum(-1)
        return total


@torch.no_grad()
def acceptance(target_path, draft_path, cfg, gamma, images, num_iter, steps, prefill, seed):
    """min(1, P/Q) of each image's tokens [images,L - prefill's], first made first. In context full gamma is 1."""
    torch.manual_seed(seed)
    labels, guided, schedule = torch.arange(images) % 10, cfg != 1, Schedule(steps)
    target, draft = (Law(path, labels, guided) for path in (target_path, draft_path))
    length, channels = target.model.config.seq_len, target.model.config.token_dim
    rank = torch.rand(images, length).argsort(1)
    plan = generation_plan(length, num_iter, cfg)
    tokens, accepted, begin = torch.zeros(images, length, channels), torch.zeros(images, length), 0
    while begin < num_iter:
        block = plan[begin:begin + 1] if begin < prefill else plan[begin:begin + gamma]
        known, drafts, made = rank < block[0][0], tokens.clone(), tokens.clone()
        for before, after, scale in block:
            predict = (rank < before) & (rank >= after)
            z = target.z(tokens, known, predict)
            made[predict] = target.path(z, scale, schedule)[-1]
            if begin >= prefill:
                draft_z = draft.z(drafts, rank < before, predict)
                path = draft.path(draft_z, scale, schedule)
                drafts[predict] = path[-1]
                ratio = target.log_density(path, z, scale, schedule) - draft.log_density(path, draft_z, scale, schedule)
                accepted[predict] = ratio.clamp(max=0).exp().float()
        tokens, begin = made, begin + len(block)
    return accepted.gather(1, rank.argsort(1).flip(1))[:, length - plan[prefill][0]:]


def main():
    demo = ROOT / "weights/demo"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=demo / "target.safetensors", type=Path)
    parser.add_argument("--draft", default=[demo / "draft.safetensors"], type=Path, nargs="+")
    parser.add_argument("--cfg", default=[2.9, 1.0], type=float, nargs="+")
    parser.add_argument("--context", default=["prefix", "full"], choices=["prefix", "full"], nargs="+")
    parser.add_argument("--gamma", default=8, type=int)
    parser.add_argument("--num", default=40, type=int, help="images [40]")
    parser.add_argument("--num_iter", default=64, type=int)
    parser.add_argument("--num_sampling_steps", default=100, type=int)
    parser.add_argument("--prefill", default=4, type=int, help="first steps without the draft [4]")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--threads", default=1, type=int)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for draft, context, cfg in itertools.product(args.draft, args.context, args.cfg):
        gamma = 1 if context == "full" else args.gamma
        accepted = acceptance(args.model, draft, cfg, gamma, args.num, args.num_iter, args.num_sampling_steps, args.prefill,
                              args.seed).double()
        rate, quarters = accepted.mean(1), ", ".join(f"{q.mean():.3f}" for q in accepted.chunk(4, dim=1))
        print(f"{draft.stem}, context {context}, cfg {cfg:g}: {rate.mean():.4f} +- {rate.std() / args.num ** 0.5:.4f} "
              f"of {accepted.numel()} tokens; by quarters: {quarters}", flush=True)


if __name__ == "__main__":
    main()
