"""Imports a model of Hugging Face Transformers: every setting and every tensor is accounted for.

The classes are those in stages/huggingface/decoders.py. Code that a model brings along never runs.
"""

import json
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer
from torch import Tensor

from model.decoder_config import DecoderConfig
from model.initialization import build_model
from model.shapes import parameter_shapes
from model.strict import problem_of
from stages.checkpoint.directory import check_new
from stages.checkpoint.foreign import MODEL_FILES, check_tensors, finite, fitting_tokenizer, open_weights, write_import
from stages.checkpoint.lineage import ImportRecord
from stages.checkpoint.manifest import CheckpointError, Manifest, TextFacts
from stages.checkpoint.pretrained import num_token_ids, text_facts
from stages.huggingface.decoders import Architecture, joined_shape, split_tensor
from stages.huggingface.same_logits import check_logits
from stages.huggingface.settings import read_settings
from stages.stage_dir import TOKENIZER_NAME


def import_huggingface(
    model: str, output: Path, *, check: bool = True, on_progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Writes `output`, the model in the folder `model` or of that name on the Hugging Face Hub; returns its manifest.

    With `check`, and if Transformers is installed, its own class must compute the same logits. The importer holds the
    model once, in float32, and the checker another time. `on_progress(done, total)` counts parameters.

    Raises CheckpointError if there is no such model, a setting or a tensor is not what growctl computes, weights are
    missing, damaged or not finite, the tokenizer does not fit, or `output` exists; LogitsDiffer if the check fails;
    DiskFull. Nothing is left behind then.
    """
    check_new(output)
    folder = _folder(model)
    settings = _json(folder / "config.json", required=True)
    try:
        architecture, config, length = read_settings(settings)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: {problem_of(error)}") from error
    parameters = _parameters(folder, architecture, config)
    tokenizer, text = _text(folder, settings, config.vocab_size, length)
    imported = build_model(config)
    with torch.no_grad():
        for name, value in parameters:
            imported.get_parameter(name).copy_(value)
    record = ImportRecord(layout="huggingface", weights=model, check="not checked: --no-check")
    if check:
        num_ids = num_token_ids(tokenizer) if tokenizer else config.vocab_size
        found = check_logits(folder, imported, num_ids, length, what=str(folder), own_code=False)
        record = record.model_copy(update={"check": str(found)})
    return write_import(output, config, imported.named_parameters(), tokenizer, text, record, on_progress)


def _folder(model: str) -> Path:
    """The folder `model`, or the one into which huggingface_hub downloads the model of that name."""
    folder = Path(model)
    if folder.exists() or folder.is_absolute() or model.startswith("."):
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{model} is not a folder with a config.json, as Transformers saves a model")
        return folder
    try:
        files = ["*.json", "model*.safetensors"]
        return Path(snapshot_download(model, allow_patterns=files, ignore_patterns=["*/*"]))
    except Exception as error:  # of the name, the network or the disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise CheckpointError(
            f"{model} is not a folder, and Hugging Face gives no model of that name ({reason}); give a folder that "
            "holds config.json and weights, or a name such as HuggingFaceTB/SmolLM2-135M"
        ) from error


def _json(path: Path, required: bool = False) -> dict[str, Any]:
    """The JSON object in `path`; empty if there is no such file, unless it is `required`."""
    if not required and not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return document


def _text(folder: Path, settings: dict[str, Any], rows: int, context_length: int) -> tuple[Tokenizer | None, TextFacts]:
    """The tokenizer, if there is one, and what the checkpoint records of its text.

    The end of text is what the first of config.json, generation_config.json and tokenizer_config.json says that the
    tokenizer has.
    """
    facts = TextFacts(context_length=context_length)
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        return None, facts
    tokenizer = fitting_tokenizer(path, rows)
    known = [each.get("eos_token_id") for each in (settings, _json(folder / "generation_config.json"))]
    ids = [end for each in known for end in (each if isinstance(each, list) else [each])]
    named = _json(folder / "tokenizer_config.json").get("eos_token")
    ends = [tokenizer.id_to_token(end) for end in ids if isinstance(end, int) and 0 <= end < rows]
    ends.append(named.get("content") if isinstance(named, dict) else named)
    end = next((end for end in ends if isinstance(end, str) and tokenizer.token_to_id(end) is not None), None)
    encoded = tokenizer.encode("a")
    before = encoded.tokens[: len([*takewhile(bool, encoded.special_tokens_mask)])]
    if len(before) > 1:
        raise CheckpointError(f"{path} puts {' '.join(before)} before each text; growctl puts one token there at most")
    begin = before[0] if before else None
    return tokenizer, text_facts(tokenizer, facts.model_copy(update={"end_of_text": end, "begin_of_text": begin}))


def _parameters(folder: Path, architecture: Architecture, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
    """Checks which tensors the folder has; then yields the float32 value of each parameter, one tensor at a time."""
    present = [folder / name for name in MODEL_FILES if (folder / name).is_file()]
    if not present:
        raise CheckpointError(
            f"{folder} has a config.json but no weights: none of {', '.join(MODEL_FILES)}. From the hub, growctl "
            "downloads only safetensors; for a model that has others, load and save it with Transformers, "
            "AutoModelForCausalLM.from_pretrained(NAME).save_pretrained(FOLDER), and import FOLDER"
        )
    weights, names, shapes = present[0], architecture.tensor_names(config), parameter_shapes(config)
    state = open_weights(weights)
    head, embedding = (f"{architecture.tensors[module]}.weight" for module in ("head", "embedding"))
    if config.tie_embeddings and head in state and not torch.equal(state.pop(head), state[embedding]):
        raise CheckpointError(f"{weights}: {head} is not {embedding}, but tie_word_embeddings is true")
    expected = {name: joined_shape(ours, shapes) for name, ours in names.items()}
    check_tensors(state, expected, architecture.buffer_names(config), weights, folder / "config.json")

    def values() -> Iterator[tuple[str, Tensor]]:
        for name, ours in names.items():
            value = finite(state.pop(name), name, weights)
            yield from zip(ours, split_tensor(value, ours, config.head_width), strict=True)

    return values()
