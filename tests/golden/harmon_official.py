"""The official code of Harmon and UniPic-1 on a CPU, for make_harmon.py and bench/harmon_torch.py.

A checkout of github.com/wusize/Harmon, or the folder UniPic-1 of SkyworkAI/UniPic, is imported as it is. In memory `cuda()` returns its
tensor, xtuner's builder returns what it is given, and transformers' own attention takes FlashAttention's place. Needs timm and einops."""

import sys
import types
from functools import partial
from pathlib import Path

import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

TEMPLATE = dict(INSTRUCTION="<|im_start|>user\n{input}<|im_end|>\n<|im_start|>assistant\n")


class Registry:
    def __init__(self, name):
        pass

    def build(self, x):
        return x


def official(checkout):
    """The modules of a checkout: the class of the whole model, and mar.mar. A second checkout takes the place of the first."""
    checkout = Path(checkout)
    unipic = (checkout / "src/models/skywork_unipic_siglip.py").exists()
    for name in [name for name in sys.modules if name.split(".")[0] == "src"]:
        del sys.modules[name]
    mmengine = types.ModuleType("mmengine")
    mmengine.registry = types.ModuleType("mmengine.registry")
    mmengine.registry.Registry = Registry
    sys.modules.update({"mmengine": mmengine, "mmengine.registry": mmengine.registry})
    torch.Tensor.cuda = lambda self, *_, **__: self
    # transformers 5 has neither the call nor the cache's iteration that the code expects
    DynamicCache.from_legacy_cache = classmethod(lambda cls: cls())
    sys.path.insert(0, str(checkout))
    import src.models.mar.mar as mar
    if unipic:
        from src.models.skywork_unipic_siglip import SkyworkUnipic as model
    else:
        from src.models.harmon import Harmon as model
    sys.path.pop(0)
    model.curtail_cache = staticmethod(lambda cache, length: cache.crop(length - cache.get_seq_length()))
    return model, mar


def build(modules, llm, mar, heads, width, depth, vae, tokenizer, attention="sdpa"):
    """A model in eval mode. llm: Qwen2's configuration, a dictionary. mar: arguments of MAR, of this width and depth. vae: a module,
    or None."""
    Model, mar_module = modules
    norm = partial(torch.nn.LayerNorm, eps=1e-6)
    config = Qwen2Config(**{k: v for k, v in llm.items() if k != "model_type"})
    config._attn_implementation = attention
    towers = mar_module.MAR(encoder_embed_dim=width, encoder_depth=depth, encoder_num_heads=heads, decoder_embed_dim=width,
                            decoder_depth=depth, decoder_num_heads=heads, mlp_ratio=4, norm_layer=norm, **mar)
    parts = dict(vae=torch.nn.Identity() if vae is None else vae, vae_scale=0.2325, llm=Qwen2ForCausalLM(config), mar=towers,
                 tokenizer=tokenizer, prompt_template=TEMPLATE)
    if Model.__name__ == "SkyworkUnipic":
        parts["siglip2"] = torch.nn.Identity()
    return Model(**parts).eval()
