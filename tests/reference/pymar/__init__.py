"""MAR (Li et al. 2024, "Autoregressive Image Generation without Vector Quantization") in plain PyTorch.

A small independent implementation with the official tensor names, so that `load_state_dict` takes the official
checkpoints. It trains the demo models, makes the golden test data, and is the PyTorch side of the benchmark.
"""

from .diffusion import Schedule, hybrid_loss, q_sample, sample_chain
from .gpt import GPT, Eagle, GptConfig, generate_codes
from .io import load_eagle, load_gpt, load_mar, load_sphere, load_vae, load_vq, read_safetensors, save_official_mar, save_official_vae, write_safetensors
from .model import ARCHS, MAR, MarConfig, generate, generation_plan, sample_tokens, torch_noise
from .nextstep import NextStepNet
from .spherear import FlowHead, PowerSpherical, SphereAR, SphereConfig, SphereVae, SphereVaeConfig, generate_sphere, on_sphere
from .vae import KL16, TOKEN_SCALE, VAE, VaeConfig
from .vq import VQ, VqConfig

__all__ = [
    "ARCHS", "Eagle", "FlowHead", "GPT", "GptConfig", "KL16", "MAR", "MarConfig", "NextStepNet", "PowerSpherical", "Schedule", "SphereAR", "SphereConfig", "SphereVae",
    "SphereVaeConfig", "TOKEN_SCALE", "VAE", "VQ", "VaeConfig", "VqConfig", "generate",
    "generate_codes", "generate_sphere", "generation_plan",
    "hybrid_loss", "load_eagle", "load_gpt", "load_mar", "load_sphere", "load_vae", "load_vq", "on_sphere", "q_sample", "read_safetensors", "sample_chain",
    "sample_tokens", "save_official_mar",
    "save_official_vae", "torch_noise", "write_safetensors",
]
