"""Exports a checkpoint as a folder that Hugging Face Transformers loads.

A Tokenformer brings its own code (stages/huggingface/code). A decoder becomes a class that Transformers has
(stages/huggingface/decoders.py). A model of images gets an image processor in place of a tokenizer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from tokenizers import Tokenizer
from torch import Tensor

from model.config import ImageInput
from model.decoder_config import DecoderConfig
from model.errors import UserError
from model.tokenformer import Tokenformer
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint.directory import check_new, publish_directory, whole_directory
from stages.checkpoint.files import FileEntry, write_file
from stages.checkpoint.manifest import TextFacts
from stages.checkpoint.pretrained import Pretrained
from stages.huggingface import code
from stages.huggingface.decoders import decoder_settings, decoder_tensors, rope_parameters
from stages.huggingface.layouts import tokenformer_settings, tokenformer_tensors
from stages.huggingface.record import ExportDtype, HuggingFaceExport, LogitsCheck
from stages.huggingface.same_logits import check_logits

DTYPES: dict[ExportDtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

CODE = ("configuration_tokenformer.py", "modeling_tokenformer.py")
INDEX_NAME = "model.safetensors.index.json"


def export_huggingface(
    pretrained: Pretrained,
    directory: Path,
    *,
    card: Callable[[HuggingFaceExport], str],
    dtype: ExportDtype = "float32",
    max_shard_bytes: int = 5 * 10**9,
    context_length: int | None = None,
    check: bool = True,
) -> HuggingFaceExport:
    """Writes `pretrained`, whose model is float32, as the new folder `directory`, with the README.md that `card` gives.

    `context_length` stands in for one that the checkpoint does not record. With `check`, and if Transformers is
    installed, it must compute the model's logits from the float32 weights, before they are rounded to `dtype`.

    Raises UserError if `directory` exists, the model cannot be exported, or there is no context length; DiskFull if
    there is no space; LogitsDiffer if the check fails. Nothing is left behind then.
    """
    config = pretrained.model.config
    if not config.num_layers:
        raise UserError(f"{pretrained.directory} has no layers, and an export to Hugging Face needs at least one")
    if isinstance(config, TokenformerConfig) and config.is_routed:
        raise UserError(f"{pretrained.directory} reads its tokens in part (routing), which the export cannot hold")
    limits = {"documents": "data.document_mask", "windows": "model.attention_window"}
    if limit := "documents" if config.document_end_id is not None else "windows" if config.attention_window else "":
        raise UserError(
            f"{pretrained.directory} attends within {limit} only ({limits[limit]}), which an export to Hugging Face "
            "cannot hold: Transformers would attend to all tokens before and compute other logits"
        )
    image = config.image
    length = image.sequence_length if image else pretrained.text.context_length or context_length
    if length is None:
        raise UserError(
            f"{pretrained.directory} does not record the length of its training sequences; give it with "
            "--context-length N"
        )
    check_new(directory)
    if isinstance(pretrained.model, Tokenformer):
        settings, tensors = tokenformer_settings(pretrained.model), tokenformer_tensors(pretrained.model)
    else:
        assert isinstance(config, DecoderConfig)
        settings, tensors = decoder_settings(config), decoder_tensors(dict(pretrained.model.named_parameters()), config)
    num_values = sum(tensor.numel() for tensor in tensors.values())
    own_code = "auto_map" in settings
    if image is None:
        settings, texts = settings | _text_settings(pretrained, length), _text_files(pretrained, length)
    else:
        settings, texts = settings | _labels(pretrained), {"preprocessor_config.json": _as_json(_processor(image))}
    texts["config.json"] = _as_json(settings | {"dtype": dtype})
    if own_code:
        texts |= {name: (Path(code.__path__[0]) / name).read_text() for name in CODE}
    with whole_directory(directory, torch.float32.itemsize * num_values) as staging:
        files = {name: write_file(staging / name, text.encode()) for name, text in texts.items()}
        weights = _write_weights(staging, tensors, torch.float32, max_shard_bytes)
        logits_check = LogitsCheck(not_checked="--no-check")
        if check:
            logits_check = check_logits(
                staging, pretrained.model, pretrained.num_token_ids, length, what="the export", own_code=own_code
            )
        if dtype != "float32":
            for name in weights:
                (staging / name).unlink()
            weights = _write_weights(staging, tensors, DTYPES[dtype], max_shard_bytes)
        files |= weights
        export = HuggingFaceExport(
            path=directory,
            checkpoint=pretrained.directory,
            architecture=settings["architectures"][0],
            needs_trust_remote_code=own_code,
            dtype=dtype,
            context_length=length,
            files=files,
            weight_bytes=num_values * DTYPES[dtype].itemsize,
            check=logits_check,
        )
        readme = write_file(staging / "README.md", card(export).encode())
        publish_directory(directory)
    return replace(export, files=dict(sorted({**files, "README.md": readme}.items())))


def _text_settings(pretrained: Pretrained, context_length: int) -> dict[str, Any]:
    """The part of `config.json` that all models of text share. Batches are padded with the end of text."""
    rope = rope_parameters(pretrained.manifest.model)
    return {"max_position_embeddings": context_length, "rope_parameters": rope} | _special_ids(pretrained.text)


def _special_ids(text: TextFacts) -> dict[str, int | None]:
    begin, end = text.begin_of_text_id, text.end_of_text_id
    return {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end}


def _labels(pretrained: Pretrained) -> dict[str, Any]:
    """The classes of images in `config.json`: by name or, where the checkpoint does not name them, by number."""
    classes = pretrained.manifest.classes or tuple(map(str, range(pretrained.manifest.model.vocab_size)))
    return {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}


def _processor(image: ImageInput) -> dict[str, Any]:
    """What stages/images/pixels.py does to an RGB or, of one channel, grey image, as a `preprocessor_config.json`."""
    return dict.fromkeys(("do_resize", "do_center_crop", "do_rescale", "do_normalize"), True) | {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": image.channels == 3,
        "size": {"shortest_edge": image.size},
        "resample": 3,  # bicubic
        "crop_size": {"height": image.size, "width": image.size},
        "rescale_factor": 1 / 255,
        "image_mean": [0.5] * image.channels,
        "image_std": [0.5] * image.channels,
    }


def _text_files(pretrained: Pretrained, context_length: int) -> dict[str, str]:
    """The tokenizer and the defaults of text generation: each file's content by name.

    Transformers 5 keeps the special tokens in `tokenizer_config.json`. Generation is greedy by default, and ids that no
    token has are suppressed: the model's logits for them stay what they are. The tokenizer keeps what it adds to texts
    if the model was trained so.
    """
    exported = Tokenizer.from_str(pretrained.tokenizer.to_str())
    adds = any(exported.num_special_tokens_to_add(is_pair) for is_pair in (False, True))
    if adds and pretrained.text.begin_of_text is None:
        exported.post_processor = None
    begin, end = pretrained.text.begin_of_text, pretrained.text.end_of_text
    tokenizer_config = {
        "tokenizer_class": "TokenizersBackend",
        "model_max_length": context_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        **({"bos_token": begin} if begin else {}),
        **({"eos_token": end, "pad_token": end} if end else {}),
    }
    unused = list(range(pretrained.num_token_ids, pretrained.manifest.model.vocab_size))
    generation_config = {"do_sample": False, **_special_ids(pretrained.text), "suppress_tokens": unused or None}
    return {
        "tokenizer.json": exported.to_str(pretty=True),
        "tokenizer_config.json": _as_json(tokenizer_config),
        "generation_config.json": _as_json(generation_config),
    }


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _write_weights(
    directory: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, max_shard_bytes: int
) -> dict[str, FileEntry]:
    """Writes `tensors` in `dtype`, as one safetensors file or as several with the index that Transformers reads.

    A tensor larger than `max_shard_bytes` gets a file of its own.
    """
    planned = {name: torch.empty(tensor.shape, dtype=dtype, device="meta") for name, tensor in tensors.items()}
    split = split_torch_state_dict_into_shards(planned, max_shard_size=max_shard_bytes)
    files = {}
    for file, names in split.filename_to_tensors.items():
        values = {name: tensors[name].detach().to("cpu", dtype).contiguous() for name in names}
        files[file] = write_file(directory / file, safetensors.torch.save(values, metadata={"format": "pt"}))
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        files[INDEX_NAME] = write_file(directory / INDEX_NAME, json.dumps(index, indent=2).encode())
    return files
