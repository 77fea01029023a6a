"""NextStep-1 with random weights in bf16, as its release's folder: shards with an index, config.json, a tokenizer with Qwen2.5's ids, but
of bytes only, and vae/ with Flux's autoencoder in f32."""

import json
from pathlib import Path

import torch

from pymar import VAE, VaeConfig
from random_decoder import Pool, write_shards
from random_harmon import PIECES, SPECIAL, language_shapes, write_tokenizer

ADDED = ["[PAD]", *(f"<|{name}|>" for name in (
    "image_area begin_of_image end_of_image image_placeholder begin_of_prompt_refinement end_of_prompt_refinement begin_of_thinking "
    "end_of_thinking").split())]
IDS = {name: PIECES + len(SPECIAL) + i for i, name in enumerate(ADDED)}
CONFIG = dict(architectures=["NextStepForCausalLM"], model_type="nextstep", attention_bias=True, o_attention_bias=False, mlp_bias=False,
              hidden_size=5120, intermediate_size=13824, num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8,
              hidden_act="silu", vocab_size=152064, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
              max_position_embeddings=131072, tie_word_embeddings=False, latent_size=32, latent_patch_size=2, latent_channels=16,
              fm_head_dim=1536, fm_head_layers=12, fm_head_batch_mul=4, use_gen_pos_embed=False, vae_name_or_path="vae/",
              boi=IDS["<|begin_of_image|>"], eoi=IDS["<|end_of_image|>"], image_placeholder_id=IDS["<|image_placeholder|>"],
              pad_token_id_added=IDS["[PAD]"], torch_dtype="bfloat16")
NEXTSTEPS = {"nextstep_14b": CONFIG}
FLUX = VaeConfig(ch_mult=(1, 2, 4, 4), encoder_attention=False)
FLUX_CONFIG = dict(resolution=256, in_channels=3, ch=FLUX.ch, out_ch=3, ch_mult=FLUX.ch_mult, num_res_blocks=FLUX.num_res_blocks,
                   z_channels=FLUX.z_channels, scaling_factor=0.3611, shift_factor=0.1159, deterministic=True, encoder_norm=True, psz=1)
SHARDS = 12


def linear(name, inputs, outputs):
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def shapes(c):
    width, head, token = c["hidden_size"], c["fm_head_dim"], c["latent_channels"] * c["latent_patch_size"] ** 2
    yield "gen_pos_embed", (1, c["latent_size"] ** 2, width)
    yield from language_shapes("", c)
    yield "lm_head.weight", (c["vocab_size"], width)
    yield from linear("image_in_projector", token, width)
    yield from linear("image_out_projector", width, width)
    net = "image_head.net."
    yield from linear(f"{net}time_embed.mlp.0", 256, head)
    yield from linear(f"{net}time_embed.mlp.2", head, head)
    yield from linear(f"{net}cond_embed", width, head)
    yield from linear(f"{net}input_proj", token, head)
    for i in range(c["fm_head_layers"]):
        block = f"{net}res_blocks.{i}."
        yield f"{block}in_ln.weight", (head,)
        yield f"{block}in_ln.bias", (head,)
        yield from linear(f"{block}mlp.0", head, head)
        yield from linear(f"{block}mlp.2", head, head)
        yield from linear(f"{block}adaLN_modulation.1", head, 3 * head)
    yield from linear(f"{net}final_layer.linear", head, token)
    yield from linear(f"{net}final_layer.adaLN_modulation.1", head, 2 * head)


def flux_state(state):
    """Tensors of a VAE of this shape without the layers around the latents, which Flux's has not."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(("quant_conv.", "post_quant_conv."))}


def write_nextstep(arch, out, vae, depth=None, seed=0):
    """Writes a model with this image decoder, a VAE of the configuration FLUX."""
    folder, config = Path(out), dict(NEXTSTEPS[arch])
    if depth:
        config["num_hidden_layers"] = depth
    (folder / "vae").mkdir(parents=True, exist_ok=True)
    torch.save(flux_state(vae.state_dict()), folder / "vae/checkpoint.pt")
    (folder / "vae/config.json").write_text(json.dumps(FLUX_CONFIG, indent=1))
    write_shards(folder, list(shapes(config)), SHARDS, Pool(seed))
    write_tokenizer(folder, True, ADDED)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
