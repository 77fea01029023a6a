"""Golden data for nets/causal: what transformers' Qwen2 makes of a small random model in float32. Its heads times their size are
not its width, q, k and v alone have biases, two heads of q share one of k and v, the output layer is the embedding.

    python3 tests/golden/make_qwen.py     ->  tests/golden/data/qwen.safetensors

`ids` are tokens behind a prompt of embeddings, `log_probs` the distributions in front of each. `vectors` are tokens that two
layers with SiLU between them project, `hidden` the last hidden rows in front of each."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

WIDTH, HEADS, GROUPS, SIZE, HIDDEN, VOCABULARY = 24, 4, 2, 12, 40, 20
TOKENS, PROMPT, CHANNELS, PROJECT = 9, 5, 6, 16


def main():
    torch.manual_seed(50)
    config = Qwen2Config(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=SIZE,
                         intermediate_size=HIDDEN, vocab_size=VOCABULARY, tie_word_embeddings=True, rms_norm_eps=1e-6,
                         rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    model = Qwen2ForCausalLM(config).float().eval()
    project = torch.nn.Sequential(torch.nn.Linear(CHANNELS, PROJECT), torch.nn.SiLU(), torch.nn.Linear(PROJECT, WIDTH))
    parameters = dict(model.named_parameters()) | {f"project.{name}": p for name, p in project.named_parameters()}
    with torch.no_grad():
        for name, p in parameters.items():  # exact in the half precision they are stored in
            noise = torch.randn(p.shape)
            value = 1 + 0.2 * noise if "norm" in name else 0.5 * noise if p.dim() == 1 else 1.5 * noise / p.shape[-1] ** 0.5
            p.copy_(value.half().float())
        assert parameters["model.layers.0.self_attn.q_proj.weight"].shape == (HEADS * SIZE, WIDTH) and HEADS * SIZE != WIDTH
        prompt = torch.randn(1, PROMPT, WIDTH)
        ids, vectors = torch.randint(VOCABULARY, (1, TOKENS)), torch.randn(1, TOKENS, CHANNELS)
        of_ids = model(inputs_embeds=torch.cat([prompt, model.model.embed_tokens(ids)], 1)).logits.log_softmax(-1)
        of_vectors = model.model(inputs_embeds=torch.cat([prompt, project(vectors)], 1)).last_hidden_state
        data = {name: p.half().contiguous() for name, p in parameters.items()}
    last = slice(PROMPT - 1, PROMPT - 1 + TOKENS)
    data |= {"prompt": prompt[0], "ids": ids[0].float(), "log_probs": of_ids[0, last].contiguous(), "vectors": vectors[0],
             "hidden": of_vectors[0, last].contiguous()}
    save_file(data, Path(__file__).parent / "data/qwen.safetensors")


if __name__ == "__main__":
    main()
