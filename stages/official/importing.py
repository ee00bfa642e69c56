"""Imports an official checkpoint: every tensor is checked, and written as a `parameters` checkpoint, one at a time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from model.config import TokenformerConfig, num_parameters, parameter_shapes
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.disk_full import clean_when_full, require_space
from stages.checkpoint.files import FileEntry, write_file
from stages.checkpoint.lineage import ImportRecord, Lineage
from stages.checkpoint.manifest import CheckpointError, Manifest, TextFacts, history_of
from stages.checkpoint.parameters import write_parameters
from stages.checkpoint.pretrained import num_token_ids, parse_tokenizer, text_facts
from stages.counted import counted
from stages.official.files import DTYPES, open_weights
from stages.official.layout import OFFICIAL_EMBEDDING, official_names, problem_of, read_settings, rotary_buffers
from stages.stage_dir import TOKENIZER_NAME


def import_official(
    weights: Path,
    settings: Path,
    output: Path,
    *,
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
    end_of_text: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Writes `output`, the official model of `weights` and its NeoX YAML `settings`, and returns its manifest.

    `weights` is what `open_weights` opens. The embedding may have more rows than the tokenizer has ids; `tokenizer`, a
    tokenizer.json that the checkpoint then holds, or `vocab_size` says how many rows have an id. `end_of_text` names
    the token between documents (default: `<|endoftext|>` if the tokenizer has it). The checkpoint has no moments.
    `on_progress(done, total)` counts parameters.

    Raises CheckpointError if a tensor is missing, unknown, misshapen, not finite or not a floating-point number, if the
    settings or the tokenizer do not fit, or if `output` exists; DiskFull if there is no space. Partial output is
    deleted.
    """
    state = open_weights(weights)
    if OFFICIAL_EMBEDDING not in state or not state[OFFICIAL_EMBEDDING].dim() or not len(state[OFFICIAL_EMBEDDING]):
        raise CheckpointError(f"{weights} is not an official checkpoint: it has no {OFFICIAL_EMBEDDING} with rows")
    rows = len(state[OFFICIAL_EMBEDDING])
    described = read_settings(settings)
    # before a configuration of so many layers is built
    num_layers = len({name.split(".")[1] for name in state if ".attention." in name or ".mlp." in name})
    if num_layers != described.num_layers:
        raise CheckpointError(f"{weights} has {num_layers} layers; num_layers in {settings} is {described.num_layers}")
    try:
        config = described.model(rows)
    except ValueError as error:
        raise CheckpointError(f"{settings} does not describe a model: {problem_of(error)}") from error
    _check_tensors(state, config, weights, settings)
    document, facts = _text(tokenizer, vocab_size, end_of_text, rows, described.context_length)
    names = official_names(config)
    dtypes = {_name(state[official].dtype) for official in names.values()}
    num_bytes, total = 4 * num_parameters(config), len(names)

    def values() -> Iterator[tuple[str, Tensor]]:
        for name, official in names.items():
            value = state.pop(official).float()
            if num_wrong := value.numel() - int(value.isfinite().sum()):
                raise CheckpointError(f"{weights}: {official} has {counted(num_wrong, 'value')}, NaN or infinite")
            yield name, value

    with whole_directory(output) as staging:
        require_space(output, num_bytes, again="")
        with clean_when_full(output, num_bytes, again=""):
            files = write_parameters(staging, values(), on_progress and (lambda done: on_progress(done, total)))
            if document is not None:
                files[TOKENIZER_NAME] = write_file(staging / TOKENIZER_NAME, document)
            imported = ImportRecord(
                layout="official",
                weights=weights.name,
                dtype=dtypes.pop() if len(dtypes) == 1 else None,
                ignored_settings=described.ignored,
            )
            return finish_directory(output, _manifest(config, files, facts, imported))


def _manifest(
    config: TokenformerConfig, files: dict[str, FileEntry], facts: TextFacts, imported: ImportRecord
) -> Manifest:
    """The manifest of an import, whose history starts with its tensors."""
    tokenizer = files.get(TOKENIZER_NAME)
    manifest = Manifest(
        kind="parameters",
        model=config,
        step=0,
        group_steps={},
        samples_seen=0,
        seed=0,
        dataset_fingerprint=None,
        tokenizer_sha256=tokenizer.sha256 if tokenizer else None,
        text=facts,
        files=files,
        lineage=Lineage(operation="import", imported=imported),
    )
    lineage = manifest.lineage.model_copy(update={"history": history_of(manifest)})
    return manifest.model_copy(update={"lineage": lineage})


def _check_tensors(state: dict[str, Tensor], config: TokenformerConfig, weights: Path, settings: Path) -> None:
    """Checks that `state` has the tensors of the model and, apart from rotary frequencies, no others."""
    names, buffers = official_names(config), rotary_buffers(config)
    for name in sorted(set(state) - set(names.values())):
        if name not in buffers:
            raise CheckpointError(f"{weights} has {name}, which the model in {settings} does not have")
        _check_frequencies(state[name], config, f"{weights}: {name}", settings)
    for ours, shape in parameter_shapes(config).items():
        name = names[ours]
        if name not in state:
            raise CheckpointError(f"{weights}: {name} is missing")
        tensor = state[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{weights}: {name} has shape {list(tensor.shape)}, not {list(shape)}")
        if tensor.dtype not in DTYPES.values() or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise CheckpointError(
                f"{weights}: {name} must be an ordinary tensor of {', '.join(DTYPES)}, not of {_name(tensor.dtype)}"
            )


def _check_frequencies(frequencies: Tensor, config: TokenformerConfig, name: str, settings: Path) -> None:
    """Checks a buffer of rotary frequencies, which GPT-NeoX rounds to the precision of the training."""
    width = config.rotary_width
    expected = config.rotary_base ** (-torch.arange(0, width, 2, dtype=torch.float64) / max(width, 1))
    fits = frequencies.shape == expected.shape and frequencies.is_floating_point()
    rounded = [expected.to(dtype).float() for dtype in DTYPES.values()]
    if not fits or not any(torch.allclose(frequencies.float(), values, rtol=1e-5, atol=0) for values in rounded):
        raise CheckpointError(
            f"{name} does not hold the frequencies of rotary_pct {config.rotary_fraction:g} and rotary_emb_base "
            f"{config.rotary_base:g} in {settings}"
        )


def _text(
    tokenizer: Path | None, vocab_size: int | None, end_of_text: str | None, rows: int, context_length: int | None
) -> tuple[bytes | None, TextFacts]:
    """The tokenizer's document, serialised as in a dataset, and what the checkpoint records of its text."""
    facts = TextFacts(context_length=context_length, end_of_text=end_of_text, tokenizer_vocab_size=vocab_size)
    if vocab_size is not None and (tokenizer or vocab_size > rows):
        raise CheckpointError(f"--vocab-size {vocab_size}: goes without --tokenizer, and up to {rows:,}, the embedding")
    if tokenizer is None:
        if end_of_text is not None:
            raise CheckpointError(f"--end-of-text {end_of_text!r} needs --tokenizer, in which growctl looks up its id")
        return None, facts
    if not tokenizer.is_file():
        raise CheckpointError(f"{tokenizer} is not a file; --tokenizer names a {TOKENIZER_NAME}")
    loaded = parse_tokenizer(tokenizer.read_bytes(), tokenizer)
    if (num_ids := num_token_ids(loaded)) > rows:
        raise CheckpointError(f"{tokenizer} has {num_ids:,} token ids; the embedding has only {rows:,} rows")
    facts = text_facts(loaded, facts)
    if end_of_text is not None and facts.end_of_text is None:
        raise CheckpointError(f"--end-of-text {end_of_text!r}: the tokenizer {tokenizer} has no such token")
    return loaded.to_str(pretty=True).encode(), facts


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
