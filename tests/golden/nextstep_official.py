"""The official code of NextStep-1 on a CPU, for make_nextstep.py.

A checkout of github.com/stepfun-ai/NextStep-1 of 2025 (nextstep/models) is imported as it is. In memory, modules that
only training and loading need are replaced by empty ones, and what transformers 5 has renamed gets its name of
transformers 4.49."""

import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch
import torch._dynamo  # before what it looks for is replaced
import transformers.utils
from transformers import ROPE_INIT_FUNCTIONS
from transformers.cache_utils import StaticCache

os.environ["ENABLE_TORCH_COMPILE"] = "false"


class Posterior:
    """In the place of diffusers', of which only the mean is needed."""

    def __init__(self, moments, deterministic):
        self.mean = moments.chunk(2, dim=1)[0]


def stand_in(name, **contents):
    """A module with these contents, and the packages it is in."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(parts[i - 1]))
    vars(sys.modules[name]).update(contents)


def default_rope(config, device=None):
    """Frequencies of the plain rotation, and the factor of attention."""
    return 1 / config.rope_theta ** (torch.arange(0, config.head_dim, 2, device=device).float() / config.head_dim), 1.0


class Cache49(StaticCache):
    """StaticCache with the arguments, and the answers as numbers, of transformers 4.49."""

    def __init__(self, config, max_batch_size, max_cache_len, device, dtype):
        super().__init__(config=config, max_cache_len=max_cache_len)
        self.longest = max_cache_len

    def get_max_cache_shape(self, layer=0):
        return self.longest

    def get_seq_length(self, layer=0):
        return int(super().get_seq_length(layer))

    def update(self, key, value, layer, arguments=None):
        return super().update(key, value, layer)


def official(checkout):
    """The modules of a checkout's nextstep.models: model, head, vae, pipeline and tokens."""
    nothing = type("Nothing", (), {})
    silent = SimpleNamespace(**{level: lambda *_: None for level in ("info", "warning", "error", "warning_once")})
    stand_in("diffusers", AutoencoderKL=nothing)
    stand_in("diffusers.models.autoencoders.vae", DecoderOutput=SimpleNamespace,
             DiagonalGaussianDistribution=Posterior)
    stand_in("diffusers.models.modeling_outputs", AutoencoderKLOutput=SimpleNamespace)
    stand_in("diffusers.utils.torch_utils", randn_tensor=None)
    stand_in("omegaconf", OmegaConf=SimpleNamespace(create=lambda fields: SimpleNamespace(**fields)))
    stand_in("tabulate", tabulate=lambda *_, **__: "")
    stand_in("transformers.modeling_attn_mask_utils", AttentionMaskConverter=nothing)
    for name in ("megfile", "requests", "webdataset"):
        stand_in(name)
    ROPE_INIT_FUNCTIONS.setdefault("default", default_rope)
    if not hasattr(transformers.utils, "is_flash_attn_greater_or_equal_2_10"):
        transformers.utils.is_flash_attn_greater_or_equal_2_10 = lambda: False
    sys.path.insert(0, str(Path(checkout)))
    import nextstep.utils  # the package, before one of its modules is replaced
    stand_in("nextstep.utils.loguru", logger=silent)
    from nextstep.models import modeling_flux_vae, modeling_fm_head, modeling_nextstep
    from nextstep.models import pipeline_nextstep, tokenization_nextstep
    sys.path.pop(0)
    pipeline_nextstep.StaticCache = modeling_nextstep.StaticCache = Cache49
    return SimpleNamespace(model=modeling_nextstep, head=modeling_fm_head, vae=modeling_flux_vae,
                           pipeline=pipeline_nextstep, tokens=tokenization_nextstep)


def build(modules, fields):
    """A model in eval mode. fields: config.json's."""
    others = "architectures", "model_type", "torch_dtype"
    config = modules.model.NextStepConfig(**{k: v for k, v in fields.items() if k not in others})
    config.rope_theta, config._attn_implementation = fields["rope_theta"], "sdpa"
    return modules.model.NextStep(config).eval()
