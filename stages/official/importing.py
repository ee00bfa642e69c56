"""Imports an official checkpoint: every tensor is checked, and written as a `parameters` checkpoint, one at a time.

Weights are `.bin`, `.safetensors`, or shards as DeepSpeed's zero_to_fp32.py writes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from model.shapes import parameter_shapes
from model.strict import problem_of
from stages.checkpoint.foreign import MODEL_FILES, check_tensors, finite, fitting_tokenizer, open_weights, write_import
from stages.checkpoint.lineage import ImportRecord
from stages.checkpoint.manifest import CheckpointError, Manifest, TextFacts
from stages.checkpoint.pretrained import text_facts
from stages.official.layout import OFFICIAL_EMBEDDING, official_names, read_settings, rotary_buffers
from stages.stage_dir import TOKENIZER_NAME

_MERGE = (
    "DeepSpeed's own shards must be merged into float32 weights first, by the script that DeepSpeed puts beside them: "
    "python CHECKPOINTS/zero_to_fp32.py CHECKPOINTS MERGED"
)


def import_official(
    weights: Path,
    settings: Path,
    output: Path,
    *,
    tokenizer: Path | None = None,
    end_of_text: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Writes `output`, the official model of `weights` and its NeoX YAML `settings`, and returns its manifest.

    `weights` is a file, or a directory with one file or an index of shards. The embedding may have more rows than
    `tokenizer`, a tokenizer.json that the checkpoint then holds, has ids. `end_of_text` names the token between
    documents (default: `<|endoftext|>` if the tokenizer has it). The checkpoint has no moments. `on_progress(done,
    total)` counts parameters.

    Raises CheckpointError if a tensor is missing, unknown, misshapen, not finite or not a floating-point number, if the
    settings or the tokenizer do not fit, or if `output` exists; DiskFull if there is no space. Partial output is
    deleted.
    """
    state = open_weights(_weights_file(weights), _MERGE)
    if OFFICIAL_EMBEDDING not in state or not state[OFFICIAL_EMBEDDING].dim() or not len(state[OFFICIAL_EMBEDDING]):
        raise CheckpointError(f"{weights} is not an official checkpoint: it has no {OFFICIAL_EMBEDDING} with rows")
    rows = len(state[OFFICIAL_EMBEDDING])
    described = read_settings(settings)
    try:
        config = described.model(rows)
    except ValueError as error:
        raise CheckpointError(f"{settings} does not describe a model: {problem_of(error)}") from error
    names, shapes = official_names(config), parameter_shapes(config)
    expected = {official: shapes[name] for name, official in names.items()}
    check_tensors(state, expected, rotary_buffers(config), weights, settings)
    loaded, facts = _text(tokenizer, end_of_text, rows, described.context_length)

    def values() -> Iterator[tuple[str, Tensor]]:
        for name, official in names.items():
            yield name, finite(state.pop(official), official, weights)

    record = ImportRecord(layout="official", weights=weights.name)
    return write_import(output, config, values(), loaded, facts, record, on_progress)


def _weights_file(path: Path) -> Path:
    """The file at `path`, or the only one of MODEL_FILES in it. Raises CheckpointError that says how to get one."""
    if not path.is_dir():
        return path
    present = [path / name for name in MODEL_FILES if (path / name).is_file()]
    if len(present) != 1:
        names = ", ".join(file.name for file in present) or "none of them"
        raise CheckpointError(f"{path} must hold one of {', '.join(MODEL_FILES)}, but has {names}. {_MERGE}")
    return present[0]


def _text(
    tokenizer: Path | None, end_of_text: str | None, rows: int, context_length: int | None
) -> tuple[Tokenizer | None, TextFacts]:
    """The tokenizer, and what the checkpoint records of its text."""
    facts = TextFacts(context_length=context_length, end_of_text=end_of_text)
    if tokenizer is None:
        if end_of_text is not None:
            raise CheckpointError(f"--end-of-text {end_of_text!r} needs --tokenizer, in which growctl looks up its id")
        return None, facts
    if not tokenizer.is_file():
        raise CheckpointError(f"{tokenizer} is not a file; --tokenizer names a {TOKENIZER_NAME}")
    loaded = fitting_tokenizer(tokenizer, rows)
    facts = text_facts(loaded, facts)
    if end_of_text is not None and facts.end_of_text is None:
        raise CheckpointError(f"--end-of-text {end_of_text!r}: the tokenizer {tokenizer} has no such token")
    return loaded, facts
