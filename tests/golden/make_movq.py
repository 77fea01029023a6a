"""Golden data for the image decoders of Chameleon and Emu3: tiny ones of the official code, with weights from a generator that
tests/vae/test_movq.c has, too.

    git clone https://github.com/Alpha-VLLM/Lumina-mGPT
    git clone https://github.com/baaivision/Emu3
    python3 tests/golden/make_movq.py Lumina-mGPT Emu3

-> tests/golden/data/movq.safetensors and the names and shapes of the official state dicts, movq_chameleon.json and movq_emu3.json.
Emu3's image is the first frame of the whole video that the official decoder makes."""

import argparse
import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import torch
from transformers.models.emu3.modeling_emu3 import Emu3VQVAE, Emu3VQVAEConfig

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "reference"))

from pymar.io import write_safetensors  # noqa: E402

HEIGHT, WIDTH, IMAGES = 3, 5, 2  # tokens
CHAMELEON = {"ch": 32, "ch_mult": (1, 1, 2), "num_res_blocks": 1, "z_channels": 16, "codebook": 48, "embed_dim": 16}
EMU3 = {"ch": 32, "ch_mult": [1, 1, 2], "num_res_blocks": 1, "attn_resolutions": [2], "codebook_size": 64}


def values(name, shape):
    """Numbers of a tensor: uniform ones by SplitMix64 of the FNV-1a hash of its name."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2 ** 64
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(40)).astype(np.float64) / 2 ** 23 - 1
    if name.endswith("running_var") or ("norm" in name and name.endswith("weight") and len(shape) == 1):
        x = 1 + 0.5 * u
    elif len(shape) < 2:
        x = 0.25 * u
    elif name == "quantize.embedding.weight":
        x = 2 * u
    else:
        x = float(np.float32(1.7 / np.sqrt(float(np.prod(shape[1:]))))) * u
    return torch.from_numpy(x.astype(np.float32).reshape(shape))


def fill(model):
    state = {name: values(name, tuple(t.shape)) for name, t in model.state_dict().items() if t.is_floating_point()}
    model.load_state_dict(state, strict=False)
    return model.eval()


def save_list(model, path, without="-"):
    shapes = {name: list(t.shape) for name, t in model.state_dict().items() if not name.startswith(without)}
    path.write_text(json.dumps(shapes, separators=(",", ":")) + "\n")


def chameleon(folder, shape):
    module = runpy.run_path(f"{folder}/lumina_mgpt/model/chameleon_vae_ori/vqgan.py")
    config = {"out_ch": 3, "in_channels": 3, "attn_resolutions": [], "resolution": 64, "double_z": False}
    config.update({key: shape[key] for key in ("ch", "ch_mult", "num_res_blocks", "z_channels")})
    return module["VQModel"](config, shape["codebook"], shape["embed_dim"])


def emu3(folder, shape):
    sys.path.insert(0, str(folder))
    code = importlib.import_module("emu3.tokenizer.modeling_emu3visionvq")
    return code.Emu3VisionVQModel(importlib.import_module("emu3.tokenizer.configuration_emu3visionvq").Emu3VisionVQConfig(**shape))


def saved_name(name):
    """The name of a tensor of Emu3's decoder in transformers' Emu3VQVAE, as tests/vae/test_movq.c makes it."""
    for old, new in (("decoder.mid.attn_1.norm.", "decoder.middle_block.attn_norm."), ("decoder.mid.", "decoder.middle_block."),
                     ("decoder.up.", "decoder.up_block.up.")):
        name = name.replace(old, new)
    name = re.sub(r"\.attn\.(\d+)\.norm\.", r".attn_norms.\1.", name)
    return re.sub(r"(\.attn[.\w]*)\.(q|k|v)\.", r"\1.\2_proj.", name).replace(".proj_out.", ".out_proj.")


def check_saved(model, image, tokens):
    """transformers' Emu3VQVAE makes the same image of the same weights."""
    config = Emu3VQVAEConfig(codebook_size=EMU3["codebook_size"], base_channels=EMU3["ch"], channel_multiplier=EMU3["ch_mult"],
                             num_res_blocks=EMU3["num_res_blocks"], attn_resolutions=EMU3["attn_resolutions"],
                             hidden_size=EMU3["ch"] * EMU3["ch_mult"][-1])
    saved, state = Emu3VQVAE(config), {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(("encoder.", "quant_conv.")):
            state[saved_name(name)] = tensor[:, :, 0, 0] if "_proj.weight" in saved_name(name) else tensor
    missing, unexpected = saved.load_state_dict(state, strict=False)
    assert not unexpected and all(name.startswith(("encoder.", "quant_conv.")) for name in missing), (missing, unexpected)
    torch.testing.assert_close(saved.eval().double().decode(tokens).float(), image, rtol=1e-5, atol=1e-5)


def as_bytes(image):
    """As image_tokenizer.py and image_processing_emu3visionvq.py make them, of these pixels."""
    return ((torch.clamp(image, -1.0, 1.0) + 1.0) / 2.0 * 255).numpy().astype(np.uint8)


def add(out, name, tokens, decode, model):
    # float64, rounded once: the reference's own rounding is out of the comparison
    image = decode(model.double()).float()
    single = decode(model.float())
    print(f"{name}: {tuple(image.shape)}, mean {image.mean():.3f}, std {image.std():.3f}, "
          f"float32 is off by {((single - image).norm() / image.norm()):.2g}")
    out[f"{name}.tokens"] = tokens.reshape(IMAGES, -1).float()
    out[f"{name}.image"] = image.permute(0, 2, 3, 1).contiguous()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chameleon")
    parser.add_argument("emu3")
    args = parser.parse_args()
    torch.manual_seed(33)
    torch.set_num_threads(1)
    out = {}
    with torch.no_grad():
        model = fill(chameleon(args.chameleon, CHAMELEON))
        save_list(model, HERE / "data/movq_chameleon.json")
        tokens = torch.randint(CHAMELEON["codebook"], (IMAGES, HEIGHT, WIDTH))
        shape = (IMAGES, HEIGHT, WIDTH, CHAMELEON["embed_dim"])
        add(out, "chameleon", tokens, lambda m: m.decode(m.quantize.get_codebook_entry(tokens.flatten(), shape)), model)
        out["chameleon.bytes"] = torch.from_numpy(as_bytes(out["chameleon.image"])).float()
        picture = torch.randint(256, (1, 4 * HEIGHT, 4 * WIDTH, 3))
        out["chameleon.picture"] = picture.float()
        codes = model.double().encode((picture.permute(0, 3, 1, 2).double() / 255.0) * 2 - 1)[2][2]
        out["chameleon.encoded"] = codes.reshape(-1).float()

        model = fill(emu3(args.emu3, EMU3))
        save_list(model, HERE / "data/movq_emu3.json", "encoder.down.")
        tokens = torch.randint(EMU3["codebook_size"], (IMAGES, HEIGHT, WIDTH))
        add(out, "emu3", tokens, lambda m: m.decode(tokens), model)
        check_saved(model, out["emu3.image"].permute(0, 3, 1, 2), tokens)
    write_safetensors(HERE / "data/movq.safetensors", out, {})


if __name__ == "__main__":
    main()
