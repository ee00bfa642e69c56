"""Exports a Tokenformer in the layout of the official PyTorch code: a flat state dict and its NeoX YAML."""

import math
from pathlib import Path
from typing import cast

import torch
import yaml
from torch import Tensor

from model.config import (
    PattentionConfig,
    ScoreFunction,
    TokenformerConfig,
    TransformerConfig,
    num_parameters,
    published_tau,
)
from model.errors import UserError
from model.language_model import LanguageModel
from model.parameter_names import TokensName
from model.pattention import Pattention, joined
from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import FileEntry, list_files, write_file
from stages.checkpoint.manifest import CheckpointError, Manifest, verify_checkpoint
from stages.checkpoint.parameters import load_model, require_parameters
from stages.official.layout import official_names, official_settings
from stages.stage_dir import TOKENIZER_NAME

WEIGHTS_NAME = "pytorch_model.bin"
SETTINGS_NAME = "official.yml"

SLOTS = {"query": "qkv", "key": "qkv", "value": "qkv", "projection": "proj", "ffn": "ffn"}
"""Pattentions that share a number of tokens."""

_HEADER = """\
# The architecture of the model beside this file, for the official TokenFormer code
# (https://github.com/Haiyang-W/TokenFormer). Settings of the training are not part of it.
"""


def export_official(source: Path, output: Path) -> dict[str, FileEntry]:
    """Writes the directory `output`: the model of the checkpoint `source` as one file of weights in the official
    layout, `official.yml`, and the tokenizer if the checkpoint has one. Returns the files.

    The generations of a Pattention are joined. The tensors of a model with one generation are the checkpoint's, byte
    for byte. They are float32, but an import that has not changed keeps the type that all its tensors had.

    Raises UserError if the official layout cannot hold the model, CheckpointError if `source` is not a complete
    `parameters` checkpoint or `output` exists, and DiskFull if there is no space. Partial output is deleted.
    """
    manifest = require_parameters(source, verify_checkpoint(source, hashes=False))
    config = manifest.model
    if reason := misfit(config):
        raise UserError(
            f"{source} cannot be exported in the official layout: {reason}. Export it with `--to huggingface`"
        )
    assert isinstance(config, TokenformerConfig)
    num_bytes = 4 * num_parameters(config)
    with whole_directory(output) as staging, raise_when_full(output, num_bytes):
        model, dtype = load_model(source), _dtype(manifest)
        state = {theirs: _merged(model, ours).detach().to(dtype) for ours, theirs in official_names(config).items()}
        with (staging / WEIGHTS_NAME).open("wb") as file:
            torch.save(state, file)
        write_file(staging / SETTINGS_NAME, _settings(manifest, config).encode())
        if TOKENIZER_NAME in manifest.files:
            _copy_tokenizer(source, manifest, staging)
        files = list_files(staging)
        publish_directory(output)
    return files


def misfit(config: TokenformerConfig | TransformerConfig) -> str | None:
    """Why the official layout cannot hold a model; None if it can.

    The official code knows one number of tokens for Q, K and V, one for O and one for the FFN, in all layers. It
    computes tau from them, and normalises all tokens together.
    """
    if not isinstance(config, TokenformerConfig):
        return f"it is a {config.family}"
    if not config.num_layers:
        return "it has no layers, and needs at least one"
    if config.document_end_id is not None:
        return "it attends within documents only (data.document_mask), and the official code would compute other logits"
    sizes: dict[str, int] = {}
    for block_id, block in zip(config.block_ids, config.blocks, strict=True):
        for name, pattention in block.pattentions().items():
            place, num_tokens = f"blocks.{block_id}.{name}", pattention.num_tokens
            if any(generation.key_ramp != 1 for generation in pattention.generations):
                return f"the ramp of {place} is not finished; train the model until it is"
            if any(generation.tau is not None for generation in pattention.generations):
                return f"{place} normalises a generation by itself (tau policy per-generation)"
            if _value_factor(pattention, config.score_function) is None:
                published = published_tau(config.score_function, num_tokens)
                return f"{place} has tau {pattention.tau:.6g}, not the {published:.6g} of its {num_tokens:,} tokens"
            if num_tokens != (same := sizes.setdefault(SLOTS[name], num_tokens)):
                return f"{place} has {num_tokens:,} tokens, but others have {same:,}; grow all layers alike"
    return None


def _value_factor(pattention: PattentionConfig, score_function: ScoreFunction) -> float | None:
    """The factor on all values that makes up for another tau than the published one; None if no factor does.

    tau multiplies the output under `gelu_l2_norm` and `softmax`, but stands inside GELU under `l2_norm_gelu`.
    """
    published = published_tau(score_function, pattention.num_tokens)
    if math.isclose(pattention.tau, published):
        return 1.0
    return None if score_function == "l2_norm_gelu" else pattention.tau / published


@torch.no_grad()
def _merged(model: LanguageModel, name: str) -> Tensor:
    """The parameter `name` of a model with one generation: all generations joined, values with their shares."""
    tokens = TokensName.parse(name)
    if tokens is None:
        return model.get_parameter(name)
    pattention = cast(Pattention, model.blocks[str(tokens.block)].get_submodule(tokens.pattention))
    [group] = pattention.token_groups()
    if tokens.kind == "key":
        return joined(group.keys, group.key_ramps)
    factor = _value_factor(pattention.config, pattention.score_function)
    assert factor is not None, "it fits"
    value_NO = joined(group.values, group.value_shares)
    return value_NO if factor == 1 else value_NO * factor


def _dtype(manifest: Manifest) -> torch.dtype:
    """The type of the values that `manifest` was imported with, if there was one; float32 otherwise."""
    imported = manifest.lineage.imported
    dtype: torch.dtype = getattr(torch, (imported and imported.layout == "official" and imported.dtype) or "float32")
    return dtype


def _copy_tokenizer(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copies the tokenizer. Users may edit an export, so it shares no file with the checkpoint."""
    copied = write_file(folder / TOKENIZER_NAME, (source / TOKENIZER_NAME).read_bytes())
    if copied.sha256 != manifest.files[TOKENIZER_NAME].sha256:
        raise CheckpointError(f"{source} is broken: {TOKENIZER_NAME} does not have the hash in the manifest")


def _settings(manifest: Manifest, config: TokenformerConfig) -> str:
    text = manifest.text
    settings = official_settings(config, text.context_length, text.tokenizer_vocab_size or config.vocab_size)
    if TOKENIZER_NAME in manifest.files:
        settings |= {"tokenizer_type": "HFTokenizer", "vocab_file": f"./{TOKENIZER_NAME}"}
    return _HEADER + yaml.safe_dump(settings, sort_keys=False)
