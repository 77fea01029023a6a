"""Gaussian diffusion of one token: cosine schedule, respacing, learned-range variance, sampling chain, training loss.

Shapes: N tokens (rows) of C channels. A head call is `model(x [N,C], t [N]) -> [N,2C]` (eps, variance fraction v),
with t on the original 0..999 axis. A *step index* i counts the respaced steps, 0 being the last one sampled.
Tables are computed in float64 and used in float32, as the official sampler does.
"""

import math

import numpy as np
import torch

TOTAL_STEPS = 1000


def cosine_betas(steps=TOTAL_STEPS, max_beta=0.999):
    """betas [steps], float64 (Nichol & Dhariwal 2021)."""
    def abar(u):
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2
    return np.array([min(1 - abar((i + 1) / steps) / abar(i / steps), max_beta) for i in range(steps)])


def respaced_timesteps(count, total=TOTAL_STEPS):
    """The `count` original timesteps that are kept, ascending. The stride is accumulated and rounded half to even."""
    if not 1 <= count <= total:
        raise ValueError(f"num_sampling_steps must be 1..{total}, got {count}")
    stride = (total - 1) / (count - 1) if count > 1 else 1.0
    position, kept = 0.0, []
    for _ in range(count):
        kept.append(round(position))
        position += stride
    return sorted(set(kept))


class Schedule:
    """Tables over the respaced steps, index 0 = last step of the chain. All [steps], float32 tensors."""

    def __init__(self, steps=TOTAL_STEPS, total=TOTAL_STEPS, device="cpu"):
        abar_all = np.cumprod(1.0 - cosine_betas(total))
        self.timesteps = respaced_timesteps(steps, total)  # original t of each step index
        self.steps = len(self.timesteps)
        previous, betas = 1.0, []
        for t in self.timesteps:
            betas.append(1 - abar_all[t] / previous)
            previous = abar_all[t]
        betas = np.array(betas)
        abar = np.cumprod(1.0 - betas)
        abar_prev = np.append(1.0, abar[:-1])
        variance = betas * (1.0 - abar_prev) / (1.0 - abar)
        # The posterior variance of step 0 is 0: its log takes step 1's value.
        clipped = np.append(variance[1], variance[1:]) if len(variance) > 1 else np.array([1e-20])

        def table(values):
            return torch.from_numpy(np.asarray(values)).float().to(device)

        self.t = torch.tensor(self.timesteps, device=device)
        self.abar = abar  # float64
        self.sqrt_abar = table(np.sqrt(abar))
        self.sqrt_one_minus_abar = table(np.sqrt(1.0 - abar))
        self.x0_from_x = table(np.sqrt(1.0 / abar))
        self.x0_from_eps = table(np.sqrt(1.0 / abar - 1))
        self.mean_from_x0 = table(betas * np.sqrt(abar_prev) / (1.0 - abar))
        self.mean_from_x = table((1.0 - abar_prev) * np.sqrt(1.0 - betas) / (1.0 - abar))
        self.log_var_min = table(np.log(clipped))
        self.log_var_max = table(np.log(betas))

    def posterior(self, eps, v, x, i):
        """Mean and log variance of p(x_{i-1} | x_i), and x0: all [N,C]. i: int, or a tensor [N] of step indices."""
        if torch.is_tensor(i):
            def at(table):
                return table[i][:, None]
        else:
            def at(table):
                return table[i]
        x0 = at(self.x0_from_x) * x - at(self.x0_from_eps) * eps
        mean = at(self.mean_from_x0) * x0 + at(self.mean_from_x) * x
        fraction = (v + 1) / 2
        log_var = fraction * at(self.log_var_max) + (1 - fraction) * at(self.log_var_min)
        return mean, log_var, x0


def sample_chain(schedule, head, x_T, noise, temperature=1.0, trace=None):
    """Run the whole chain. No noise is added at the last index, nothing is clipped.

    head: (x [N,C], t [N]) -> [N,2C].  x_T: [N,C].  noise: [steps,N,C], noise[i] used at step index i (noise[0] is not).
    trace: a list that receives every state, [N,C] each. Returns the tokens x_0 [N,C].
    """
    x = x_T
    for i in reversed(range(schedule.steps)):
        t = schedule.t[i].expand(x.shape[0])
        eps, v = head(x, t).float().chunk(2, dim=-1)
        mean, log_var, _ = schedule.posterior(eps, v, x, i)
        x = mean
        if i > 0:
            x = mean + torch.exp(0.5 * log_var) * noise[i] * temperature
        if trace is not None:
            trace.append(x)
    return x


def q_sample(schedule, x0, i, noise):
    """x_i ~ q(x_i | x_0): [N,C]. i: [N] step indices."""
    return schedule.sqrt_abar[i][:, None] * x0 + schedule.sqrt_one_minus_abar[i][:, None] * noise


def _normal_kl(mean1, log_var1, mean2, log_var2):
    return 0.5 * (-1.0 + log_var2 - log_var1 + torch.exp(log_var1 - log_var2)
                  + (mean1 - mean2) ** 2 * torch.exp(-log_var2))


def _gaussian_cdf(x):
    return 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x ** 3)))


def _discretized_log_likelihood(x, mean, log_std):
    """Log probability of x under a Gaussian integrated over a bin of 2/255, open-ended beyond +-0.999."""
    inverse = torch.exp(-log_std)
    above = _gaussian_cdf(inverse * (x - mean + 1 / 255))
    below = _gaussian_cdf(inverse * (x - mean - 1 / 255))
    inner = (above - below).clamp(min=1e-12).log()
    left = above.clamp(min=1e-12).log()
    right = (1 - below).clamp(min=1e-12).log()
    return torch.where(x < -0.999, left, torch.where(x > 0.999, right, inner))


def hybrid_loss(schedule, output, x0, x_t, i, noise):
    """Official training objective per row: MSE of eps, and the variational term that trains only the variance.

    output: [N,2C], the head's answer at (x_t, t_i).  i: [N] step indices.  Returns (mse [N], vb [N] in bits per channel).
    """
    eps, v = output.chunk(2, dim=-1)
    mse = ((noise - eps) ** 2).mean(dim=-1)

    mean, log_var, _ = schedule.posterior(eps.detach(), v, x_t, i)
    true_mean = schedule.mean_from_x0[i][:, None] * x0 + schedule.mean_from_x[i][:, None] * x_t
    kl = _normal_kl(true_mean, schedule.log_var_min[i][:, None], mean, log_var).mean(dim=-1)
    nll = -_discretized_log_likelihood(x0, mean, 0.5 * log_var).mean(dim=-1)
    return mse, torch.where(i == 0, nll, kl) / math.log(2.0)
