"""Inspects checkpoints on the same text."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from model.config import TokenformerConfig
from model.errors import Failure, UserError
from stages.checkpoint.manifest import Manifest, read_manifest
from stages.inspect.facts import Inspected

if TYPE_CHECKING:
    from model.language_model import LanguageModel
    from stages.checkpoint.pretrained import Pretrained

LONGEST_DEFAULT = 256
"""Tokens per window if no checkpoint knows its context."""


@dataclass(frozen=True)
class TextChoice:
    """The text that the user asked for."""

    texts: Sequence[Path]
    """Text files, or folders of them; if there are none, windows of `dataset`'s validation split."""

    dataset: Path | None
    num_sequences: int
    context: int | None
    """Tokens per window. None: the shortest context of the checkpoints."""

    batch_size: int


@dataclass(frozen=True)
class Text:
    """The text that was measured on."""

    source: str
    num_sequences: int
    context: int
    """Tokens per window."""

    batch_size: int


@dataclass(frozen=True)
class Subject:
    """One model that was inspected."""

    name: str
    """The checkpoint as the user named it."""

    scores: str
    """The score function, or `linear`."""

    facts: Inspected


@dataclass(frozen=True)
class Inspection:
    """Everything that was measured, in the user's order."""

    text: Text
    subjects: tuple[Subject, ...]


Open = Callable[[Path], "AbstractContextManager[Pretrained]"]
"""Opens a checkpoint's directory, with its model and its tokenizer."""


def inspect_checkpoints(
    checkpoints: Sequence[tuple[str, Path]],
    choice: TextChoice,
    open_model: Open,
    progress: Callable[[str, int, int], None],
) -> Inspection:
    """Measures the checkpoints (name, directory).

    One model is in memory at a time. `progress(name, batches done, batches of all models)` is called before each batch.
    Raises UserError for unusable choices, before anything is measured.
    """
    from stages.evaluate.documents import text_files

    manifests = [read_manifest(path) for _, path in checkpoints]
    _check_tokenizers(checkpoints, manifests)
    files = text_files(choice.texts)
    choice = choice if choice.context else replace(choice, context=_shortest_context(manifests, choice.dataset))
    bench: _Bench | None = None
    subjects: list[Subject] = []
    for (name, path), manifest in zip(checkpoints, manifests, strict=True):
        with open_model(path) as opened:
            bench = bench or _Bench(choice, files, opened, len(checkpoints), progress)
            facts = bench.measure(opened.model, name)
        subjects.append(Subject(name, _scores(manifest.model), facts))
    assert bench is not None
    return Inspection(bench.text, tuple(subjects))


class _Bench:
    """The text, and what measures models on it."""

    def __init__(
        self,
        choice: TextChoice,
        files: Sequence[Path],
        opened: "Pretrained",
        num_models: int,
        progress: Callable[[str, int, int], None],
    ) -> None:
        """Reads the text, of `files` or of the dataset, with the tokenizer of the first checkpoint."""
        from stages.evaluate.text import require_ids
        from stages.inspect.text import dataset_windows, describe_places, text_windows

        size = (choice.num_sequences, choice.context or LONGEST_DEFAULT, choice.batch_size)
        if choice.texts:
            end_of_text_id = opened.text.end_of_text_id
            self._tokens_ST, batch_size = text_windows(files, opened.tokenizer, end_of_text_id, *size)
            source = ", ".join(map(str, choice.texts))
        else:
            assert choice.dataset is not None
            require_ids(opened, choice.dataset)
            self._tokens_ST, batch_size = dataset_windows(choice.dataset, *size)
            source = f"the validation split of {choice.dataset.name}"
        num_sequences, width = self._tokens_ST.shape
        self.text = Text(source, num_sequences, width - 1, batch_size)
        self._num_token_ids = opened.num_token_ids
        self._describe = describe_places(self._tokens_ST, opened.tokenizer)
        self._device = next(opened.model.parameters()).device
        self._progress, self._done = progress, 0
        self._total = num_models * num_sequences // batch_size

    def measure(self, model: "LanguageModel", name: str) -> Inspected:
        """Measures `model`, and reports the progress under `name`."""
        from stages.inspect.measure import inspect_model

        self._progress(name, self._done, self._total)

        def advance() -> None:
            self._done += 1
            self._progress(name, self._done, self._total)

        try:
            return inspect_model(
                model,
                self._tokens_ST,
                self.text.batch_size,
                self._describe,
                advance,
                num_token_ids=self._num_token_ids,
            )
        except Failure as error:
            raise Failure(f"{name}: {error}") from error


def _scores(config: object) -> str:
    return config.score_function if isinstance(config, TokenformerConfig) else "linear"


def _check_tokenizers(checkpoints: Sequence[tuple[str, Path]], manifests: Sequence[Manifest]) -> None:
    """Raises UserError unless all checkpoints read the same ids: else losses are of different tokens."""
    first, vocab_size = checkpoints[0][0], manifests[0].model.vocab_size
    hashes: dict[str, str] = {}
    for (name, _), manifest in zip(checkpoints, manifests, strict=True):
        if manifest.tokenizer_sha256 is not None:
            hashes.setdefault(manifest.tokenizer_sha256, name)
        if len(hashes) > 1:
            raise UserError(
                f"{name} has another tokenizer than {next(iter(hashes.values()))}, so their numbers would be of "
                "different tokens; inspect them one by one"
            )
        if manifest.model.vocab_size != vocab_size:
            raise UserError(
                f"{name} has a vocabulary of {manifest.model.vocab_size}, but {first} one of {vocab_size}; inspect "
                "them one by one"
            )


def _shortest_context(manifests: Sequence[Manifest], dataset: Path | None) -> int:
    contexts = [manifest.text.context_length for manifest in manifests if manifest.text.context_length]
    if contexts:
        return min(contexts)
    if dataset is None:
        return LONGEST_DEFAULT
    from stages.data.evaluation_windows import longest_window

    return min(LONGEST_DEFAULT, longest_window(dataset, "validation"))
