"""Exports a checkpoint as a folder that Hugging Face Transformers loads.

A Tokenformer brings its own code (stages/huggingface/code). A Transformer baseline is a GPT-NeoX, which
Transformers knows.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from model.errors import UserError
from model.language_model import LanguageModel
from model.tokenformer import Tokenformer
from model.transformer import Transformer
from stages.checkpoint.directory import check_new, publish_directory, whole_directory
from stages.checkpoint.disk_full import raise_when_full, require_space
from stages.checkpoint.files import write_file
from stages.checkpoint.pretrained import Pretrained
from stages.huggingface import code, neox_layout, tokenformer_layout
from stages.huggingface.same_logits import LogitsCheck, check_logits
from stages.huggingface.shards import LazyTensor, total_bytes, write_shards
from stages.huggingface.text_files import as_json, special_ids, text_files

ExportDtype = Literal["float32", "bfloat16"]

DTYPES: dict[ExportDtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

CODE = ("configuration_tokenformer.py", "modeling_tokenformer.py")


@dataclass(frozen=True)
class HuggingFaceExport:
    """What an export holds."""

    architecture: str
    """The class of Transformers, or of the export's own code, that loads it."""

    own_code: bool
    """Whether it has its own code, which Transformers only runs with `trust_remote_code=True`."""

    dtype: ExportDtype
    context_length: int
    end_of_text: str | None
    """The token that ends generated text and pads batches."""

    keeps_generations: bool
    """Whether each generation has its own tensors; False for a Transformer."""

    weight_files: tuple[str, ...]
    weight_bytes: int
    check: LogitsCheck | None
    """The comparison of logits; None if it was not wanted."""


def export_huggingface(
    pretrained: Pretrained,
    directory: Path,
    *,
    card: Callable[[HuggingFaceExport], str],
    keep_generations: bool = False,
    dtype: ExportDtype = "float32",
    max_shard_bytes: int = 5 * 10**9,
    context_length: int | None = None,
    check: bool = True,
) -> HuggingFaceExport:
    """Writes `pretrained`, whose model is float32, as the new folder `directory`, with the README.md that `card` gives.

    `context_length` stands in for one that the checkpoint does not record. With `check`, and if Transformers is
    installed, it must compute the model's logits.

    Raises UserError if `directory` exists, the model cannot be exported, or there is no context length or one that
    contradicts the checkpoint's; DiskFull if there is no space; ExportDiffers if the check fails. Nothing is left
    behind then.
    """
    if not pretrained.model.config.num_layers:
        raise UserError(f"{pretrained.directory} has no layers, and an export to Hugging Face needs at least one")
    if pretrained.model.config.document_end_id is not None:
        raise UserError(
            f"{pretrained.directory} attends within documents only (data.document_mask), which an export to Hugging "
            "Face cannot hold: behind an end of text, Transformers would compute other logits; export a model that was "
            "trained without data.document_mask, or use this one with `growctl generate` and `growctl eval`"
        )
    length = _context_length(pretrained, context_length)
    check_new(directory)
    settings, tensors = _layout(pretrained.model, keep_generations)
    num_bytes = total_bytes(tensors, DTYPES[dtype])
    require_space(directory, num_bytes, again="")
    own_code = "auto_map" in settings
    with raise_when_full(directory), whole_directory(directory) as staging:
        files = write_shards(staging, tensors, DTYPES[dtype], max_shard_bytes)
        config = _common(pretrained, length, dtype) | settings
        for name, content in ({"config.json": as_json(config)} | text_files(pretrained, length)).items():
            write_file(staging / name, content.encode())
        for name in CODE if own_code else ():
            write_file(staging / name, (Path(code.__path__[0]) / name).read_bytes())
        export = HuggingFaceExport(
            architecture=settings["architectures"][0],
            own_code=own_code,
            dtype=dtype,
            context_length=length,
            end_of_text=pretrained.text.end_of_text,
            keeps_generations=own_code and keep_generations,
            weight_files=tuple(files),
            weight_bytes=num_bytes,
            check=_checked(pretrained, staging, dtype, keep_generations, length) if check else None,
        )
        write_file(staging / "README.md", card(export).encode())
        publish_directory(directory)
    return export


def _context_length(pretrained: Pretrained, given: int | None) -> int:
    """The length that the checkpoint records, else the one `given`. Raises UserError for neither, or for two."""
    recorded = pretrained.text.context_length
    if recorded is not None and given not in (None, recorded):
        raise UserError(
            f"--context-length {given}: {pretrained.directory} records training sequences of {recorded} tokens; leave "
            "the option out"
        )
    length = recorded or given
    if length is None:
        raise UserError(
            f"{pretrained.directory} does not record the length of its training sequences; give it with "
            "--context-length N"
        )
    return length


def _layout(model: LanguageModel, keep_generations: bool) -> tuple[dict[str, Any], dict[str, LazyTensor]]:
    """The architecture's settings, and the tensors."""
    if isinstance(model, Tokenformer):
        return (
            tokenformer_layout.settings(model.config, keep_generations=keep_generations),
            tokenformer_layout.tensors(model, keep_generations=keep_generations),
        )
    if isinstance(model, Transformer):
        if keep_generations:
            raise UserError("--keep-generations is for a tokenformer; a transformer has no generations")
        return neox_layout.settings(model.config), neox_layout.tensors(model)
    raise UserError(f"a {model.config.family} cannot be exported to Hugging Face; a tokenformer or transformer can")


def _common(pretrained: Pretrained, context_length: int, dtype: ExportDtype) -> dict[str, Any]:
    """The part of `config.json` that both architectures share."""
    config = pretrained.manifest.model
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "max_position_embeddings": context_length,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rotary_base,
            "partial_rotary_factor": config.rotary_fraction,
        },
        "use_cache": True,
        "tie_word_embeddings": True,
        "dtype": dtype,
        **special_ids(pretrained),
    }


def _checked(
    pretrained: Pretrained, directory: Path, dtype: ExportDtype, keep_generations: bool, context_length: int
) -> LogitsCheck:
    """Compares the export with the model or, if it was rounded, with a model of the rounded parameters."""
    model = pretrained.model
    if dtype != "float32":
        model = copy.deepcopy(model)
        if isinstance(model, Tokenformer):
            tokenformer_layout.round_like_export(model, DTYPES[dtype], keep_generations=keep_generations)
        else:
            model = model.to(DTYPES[dtype]).float()
    return check_logits(directory, model, pretrained.num_token_ids, context_length)
