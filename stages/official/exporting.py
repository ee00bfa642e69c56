"""Exports a Tokenformer in the layout of the official PyTorch code: a flat state dict and its NeoX YAML."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import safetensors.torch
import torch
import yaml
from safetensors import SafetensorError
from torch import Tensor

from model.config import PattentionConfig, TokenformerConfig, num_parameters, published_tau
from model.errors import UserError
from model.parameter_names import TokensName
from model.policy import has_unfinished_ramps
from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.disk_full import clean_when_full, require_space
from stages.checkpoint.files import FileEntry, list_files, write_file
from stages.checkpoint.manifest import CheckpointError, Manifest
from stages.checkpoint.parameters import read_parameter
from stages.checkpoint.verify import verify_checkpoint
from stages.official.files import DTYPES
from stages.official.layout import official_names, official_settings
from stages.stage_dir import TOKENIZER_NAME

FileFormat = Literal["bin", "safetensors"]

WEIGHTS: dict[FileFormat, str] = {"bin": "pytorch_model.bin", "safetensors": "model.safetensors"}
SETTINGS_NAME = "official.yml"

_HEADER = """\
# The architecture of the model beside this file, for the official TokenFormer code
# (https://github.com/Haiyang-W/TokenFormer). Settings of the training are not part of it.
"""


def export_official(
    source: Path,
    output: Path,
    *,
    file_format: FileFormat = "bin",
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, FileEntry]:
    """Writes the directory `output`: the model of the checkpoint `source` as one file of weights in the official
    layout, `official.yml`, and the tokenizer if the checkpoint has one. Returns the files.

    The generations of a Pattention are joined. The tensors of a model with one generation are the checkpoint's, byte
    for byte. They are float32, but an import that has not changed keeps the type that all its tensors had.
    `on_progress(done, total)` counts tensors of the official layout.

    Raises UserError if the official layout cannot hold the model, CheckpointError if `source` is not a complete
    `parameters` checkpoint or `output` exists, and DiskFull if there is no space. Partial output is deleted.
    """
    manifest = verify_checkpoint(source, hashes=False)
    if manifest.kind != "parameters":
        raise CheckpointError(f"{source} is an engine checkpoint; export a final/ or initial/ directory instead")
    config = check_fits(manifest, source)
    num_bytes = 4 * num_parameters(config)
    with whole_directory(output) as staging:
        require_space(output, num_bytes, again="")
        with clean_when_full(output, num_bytes, again=""):
            names, dtype = official_names(config), _dtype(manifest)
            state: dict[str, Tensor] = {}
            for name, official in names.items():
                state[official] = _merged(source, manifest, config, name).to(dtype)
                if on_progress:
                    on_progress(len(state), len(names))
            _save(state, staging / WEIGHTS[file_format])
            write_file(staging / SETTINGS_NAME, _settings(manifest, config).encode())
            if TOKENIZER_NAME in manifest.files:
                _copy_tokenizer(source, manifest, staging)
            files = list_files(staging)
            publish_directory(output)
    return files


def check_fits(manifest: Manifest, source: Path) -> TokenformerConfig:
    """The configuration of a checkpoint that the official layout can hold.

    The official code knows one number of tokens for Q, K and V, one for O and one for the FFN, in all layers. It
    computes tau from them, and normalises all tokens together. Raises UserError if the model differs, with a way out.
    """
    config = manifest.model
    if not isinstance(config, TokenformerConfig):
        raise UserError(
            f"{source} is a {config.family}; the official layout only holds a tokenformer, `--to huggingface` both"
        )
    if not config.num_layers:
        raise UserError(f"{source} has no layers, and the official layout needs at least one; add layers first")
    if config.document_end_id is not None:
        raise UserError(
            f"{source} attends within documents only (data.document_mask), which the official layout cannot hold: "
            "behind an end of text, the official code would compute other logits; export a model that was trained "
            "without data.document_mask"
        )
    if has_unfinished_ramps(config):
        name, _ = next((n, p) for n, p in _pattentions(config) if any(g.key_ramp != 1 for g in p.generations))
        raise UserError(
            f"{name} of {source} has keys whose ramp is not finished, which the official layout cannot hold; train the "
            "model until its ramps are finished, or grow it with `growctl expand --preset official`"
        )
    for name, pattention in _pattentions(config):
        if any(generation.tau is not None for generation in pattention.generations):
            raise UserError(
                f"{name} of {source} normalises a generation by itself (tau policy per-generation), which the official "
                f"layout cannot hold; {_OTHERWISE}"
            )
        if _value_factor(pattention, config) is None:
            published = published_tau(config.score_function, pattention.num_tokens)
            raise UserError(
                f"{name} of {source} has tau {pattention.tau:.6g}; the official code computes {published:.6g} from its "
                f"{pattention.num_tokens:,} tokens. {_OTHERWISE.capitalize()}"
            )
    _check_sizes(config, source)
    return config


_OTHERWISE = (
    "grow with a policy that ends in tau = sqrt(n), such as the default or `growctl expand --preset official`, "
    "or export with `--to huggingface`"
)


def _check_sizes(config: TokenformerConfig, source: Path) -> None:
    slots = {"query": "qkv_slot_num", "key": "qkv_slot_num", "value": "qkv_slot_num"}
    slots |= {"projection": "proj_slot_num", "ffn": "ffn_slot_num"}
    first: dict[str, tuple[str, int]] = {}
    for name, pattention in _pattentions(config):
        slot = slots[name.rpartition(".")[2]]
        other, num_tokens = first.setdefault(slot, (name, pattention.num_tokens))
        if num_tokens != pattention.num_tokens:
            raise UserError(
                f"{name} of {source} has {pattention.num_tokens:,} tokens, but {other} has {num_tokens:,}; the "
                f"official code has one {slot} for all of them. Grow all layers alike, or use `--to huggingface`"
            )


def _pattentions(config: TokenformerConfig) -> list[tuple[str, PattentionConfig]]:
    return [
        (f"blocks.{block_id}.{name}", p)
        for block_id, block in zip(config.block_ids, config.blocks, strict=True)
        for name, p in block.pattentions().items()
    ]


def _value_factor(pattention: PattentionConfig, config: TokenformerConfig) -> float | None:
    """The factor on all values that makes up for another tau than the published one; None if no factor does.

    tau multiplies the output under `gelu_l2_norm` and `softmax`, but stands inside GELU under `l2_norm_gelu`.
    """
    published = published_tau(config.score_function, pattention.num_tokens)
    if math.isclose(pattention.tau, published):
        return 1.0
    return None if config.score_function == "l2_norm_gelu" else pattention.tau / published


def _merged(source: Path, manifest: Manifest, config: TokenformerConfig, name: str) -> Tensor:
    """The parameter `name` of a model with one generation: all generations joined, values with their shares."""
    tokens = TokensName.parse(name)
    if tokens is None:
        return read_parameter(source, manifest, name, moments=False).fp32
    pattention = config.block(tokens.block).pattentions()[tokens.pattention]
    factor = _value_factor(pattention, config)
    assert factor is not None, "check_fits has rejected it"
    parts = []
    for generation, share in zip(pattention.generations, pattention.value_shares, strict=True):
        part = read_parameter(source, manifest, str(tokens._replace(generation=generation.number)), moments=False).fp32
        parts.append(part * (share * factor) if tokens.kind == "value" and share * factor != 1 else part)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _dtype(manifest: Manifest) -> torch.dtype:
    """The type of the values that `manifest` was imported with, if there was one; float32 otherwise."""
    imported = manifest.lineage.imported
    return DTYPES[(imported and imported.layout == "official" and imported.dtype) or "float32"]


def _copy_tokenizer(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copies the tokenizer. Users may edit an export, so it shares no file with the checkpoint."""
    copied = write_file(folder / TOKENIZER_NAME, (source / TOKENIZER_NAME).read_bytes())
    if copied.sha256 != manifest.files[TOKENIZER_NAME].sha256:
        raise CheckpointError(f"{source} is broken: {TOKENIZER_NAME} does not have the hash in the manifest")


def _save(state: dict[str, Tensor], path: Path) -> None:
    """Writes `state` to `path`. Raises OSError or RuntimeError if that fails."""
    if path.suffix == ".bin":
        with path.open("wb") as file:
            torch.save(state, file)
        return
    try:
        safetensors.torch.save_file(state, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise RuntimeError(str(error)) from error


def _settings(manifest: Manifest, config: TokenformerConfig) -> str:
    text = manifest.text
    settings = official_settings(config, text.context_length, text.tokenizer_vocab_size or config.vocab_size)
    if TOKENIZER_NAME in manifest.files:
        settings |= {"tokenizer_type": "HFTokenizer", "vocab_file": f"./{TOKENIZER_NAME}"}
    return _HEADER + yaml.safe_dump(settings, sort_keys=False)
