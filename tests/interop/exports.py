"""Small exports that have learnt a sentence, so that greedy text does not hang on the last bit of a logit."""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from growctl.evaluate.model_card import model_card
from growctl.runs.show import read_facts
from model.config_growth import grow_config
from model.decoder_config import decoder_config
from model.policy import GrowthPolicy
from model.shapes import ModelConfig
from stages.checkpoint.pretrained import Pretrained, load_pretrained
from stages.huggingface.export import export_huggingface
from tests.pretrained import END_OF_TEXT, adding_tokenizer, text_config, write_pretrained

SENTENCE = "the cat sat in the inn. "
STEPS = 60


def small_models() -> dict[str, ModelConfig]:
    """Configurations by name: Tokenformers of one generation and of two with a norm each, a Llama that has grown, whose
    queries share keys, and a GPT-NeoX."""
    shape = {"width": 32, "num_heads": 2, "attention_tokens": 16, "ffn_tokens": 24}
    new = text_config(vocab_size=270, **shape)
    policy = GrowthPolicy(init="zero-value", tau="per-generation")
    grown = grow_config(new, attention_tokens=8, ffn_tokens=8, policy=policy)
    sizes = {"vocab_size": 270, "hidden_size": 32, "num_layers": 2, "ffn_tokens": 64}
    gpt_neox = decoder_config(num_heads=2, **sizes)
    base = decoder_config(
        **sizes,
        num_heads=2,
        num_kv_heads=1,
        norm="rmsnorm",
        activation="swiglu",
        rotary_fraction=1.0,
        **dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "tie_embeddings"), False),
    )
    llama = grow_config(base, ffn_tokens=8, heads=2, new_layers=1)
    return {"tokenformer": new, "grown": grown, "llama": llama, "gpt_neox": gpt_neox}


def write_export(directory: Path, name: str) -> Path:
    """Writes the export of the model `name` and, beside it, token ids with the logits that our model gives them.

    The grown model and the Llama come with a tokenizer that adds a token to each text; the Llama was trained so.
    """
    tokenizer = adding_tokenizer() if name in ("grown", "llama") else None
    begin = END_OF_TEXT if name == "llama" else None
    checkpoint = directory / f"{name}.checkpoint"
    write_pretrained(checkpoint, small_models()[name], tokenizer=tokenizer, begin_of_text=begin)
    pretrained = load_pretrained(directory / f"{name}.checkpoint")
    _learn(pretrained)
    folder = directory / name
    facts = read_facts(pretrained.directory, pretrained.manifest)
    export_huggingface(pretrained, folder, card=partial(model_card, facts), check=False)
    ids = torch.randint(1, pretrained.num_token_ids, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        save_file({"input_ids": ids, "logits": pretrained.model(ids)}, f"{folder}.reference.safetensors")
    return folder


def _learn(pretrained: Pretrained) -> None:
    ids = torch.tensor([pretrained.tokenizer.encode(SENTENCE * 6, add_special_tokens=False).ids[:49]])
    optimizer = torch.optim.AdamW(pretrained.model.parameters(), lr=5e-3)
    for step in range(STEPS):
        start = step % 16
        window = ids[:, start : start + 33]
        optimizer.zero_grad()
        pretrained.model(window[:, :-1], window[:, 1:].contiguous()).backward()
        optimizer.step()
