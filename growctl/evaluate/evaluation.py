"""`growctl eval`: the loss on text, on a split or at long contexts, and scores on tasks. Slow modules are imported on
use.

A document is the one record of an evaluation: `--json` dumps it, its sections are shown, its scores are recorded.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from growctl.ledger.entries import position_metric
from growctl.text.documents import plain
from growctl.text.formatting import byte_count
from growctl.text.section import Cell, Column, Facts, Paragraph, Section, Table, figure
from model.errors import UserError
from stages.evaluate.results import ContextLoss, TaskScore, TextLoss

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from stages.checkpoint.pretrained import Pretrained
    from stages.data.spec import SplitName
    from stages.evaluate.replicas import Replicas

RopeScaling = Literal["none", "linear", "ntk", "yarn"]


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What every evaluation depends on, beside the text or the tasks."""

    SETTINGS: ClassVar[tuple[str, ...]] = ()
    """The fields that the scores depend on beside the checkpoint."""

    checkpoint: Path
    num_parameters: int
    padding_rows: int
    """Rows of the embedding that no token has."""
    dtype: Literal["float32", "bfloat16"]
    devices: tuple[str, ...]
    """The names of the devices that shared the work."""
    tokenizer_sha256: str | None
    """Hash of the tokenizer given with --tokenizer; null if it is the checkpoint's own."""
    wall_seconds: float
    recorded_in: Path | None = None
    """The ledger that the figures were recorded in; null outside a run, and while the run trains."""

    def settings(self) -> dict[str, Any]:
        """What the scores depend on beside the checkpoint, as JSON values for the ledger."""
        another = {"tokenizer": self.tokenizer_sha256} if self.tokenizer_sha256 else {}
        return {name: plain(getattr(self, name)) for name in (*self.SETTINGS, "dtype")} | another


@dataclass(frozen=True, kw_only=True)
class TextEvaluated(TextLoss, Evaluated):
    """The loss on a text, in windows."""

    context: int
    """Tokens per window."""
    stride: int
    """Tokens from one window to the next."""

    def scores(self) -> list[dict[str, Any]]:
        """The figures as fields of the ledger's ScoreEntry."""
        values = {name: getattr(self, name) for name in ("loss", "perplexity", "word_perplexity", "bits_per_byte")}
        return [
            {"task": "text", "metric": name, "filter": "none", "value": value, "num_samples": self.num_tokens}
            for name, value in values.items()
            if value is not None
        ]

    def sections(self) -> list[Section]:
        """The figures for people, with the loss on each source of a mixture."""
        rows = [
            ("tokens predicted", f"{self.num_tokens:,}"),
            ("loss", f"{self.loss:.5f} nats per token"),
            ("perplexity", figure(self.perplexity).text),
            ("word perplexity", figure(self.word_perplexity).text),
            ("bits per byte", f"{self.bits_per_byte:.5f}"),
            *((f"loss on {name}", f"{source.loss:.5f}") for name, source in (self.by_source or {}).items()),
        ]
        return [Section("loss", f"Loss of {self.checkpoint}", (Facts(tuple(rows)),))]


@dataclass(frozen=True, kw_only=True)
class TextDocument(TextEvaluated):
    """The loss on files, with --text."""

    SETTINGS = ("context", "stride", "text")
    text: tuple[Path, ...]
    """The files that were read."""


@dataclass(frozen=True, kw_only=True)
class SplitDocument(TextEvaluated):
    """The loss on a split of a dataset, with --split."""

    SETTINGS = ("context", "stride", "dataset", "split", "sequences")
    dataset: Path
    split: Literal["train", "validation"]
    sequences: int | None
    """The number of windows; null: all."""


@dataclass(frozen=True, kw_only=True)
class TasksDocument(Evaluated):
    """The scores on benchmark tasks, with --tasks."""

    SETTINGS = ("context", "limit", "lm_eval", "trained_length", "include_path")
    tasks: tuple[TaskScore, ...]
    lm_eval: str
    """The version of lm-evaluation-harness."""
    context: int
    """Tokens per window."""
    trained_length: int
    """Tokens of a training sequence."""
    limit: int | None
    """Examples of each task; null: all."""
    include_path: Path | None

    def scores(self) -> list[dict[str, Any]]:
        """The figures as fields of the ledger's ScoreEntry."""
        return [asdict(score) for score in self.tasks]

    def sections(self) -> list[Section]:
        """A row for each metric of each task."""
        headings = ("value", "standard error", "examples", "shots")
        columns = [Column("task", False), Column("metric", False), *map(Column, headings)]
        rows = [
            (
                Cell(score.task),
                Cell(score.metric if score.filter == "none" else f"{score.metric}, {score.filter}"),
                *(figure(score.value), figure(score.standard_error)),
                *(figure(score.num_samples, "{:,}"), figure(score.num_shots, "{:,}")),
            )
            for score in self.tasks
        ]
        return [Section("tasks", "Scores on tasks", (Table.of("tasks", columns, rows),))]


@dataclass(frozen=True, kw_only=True)
class ContextsDocument(Evaluated):
    """The loss at long contexts, with --contexts."""

    SETTINGS = ("trained_length", "text", "rope_scaling", "max_tokens")
    contexts: tuple[ContextLoss, ...]
    trained_length: int
    """Tokens of a training sequence."""
    rope_scaling: RopeScaling
    max_tokens: int
    """Tokens of the text that were read, at most."""
    text: tuple[Path, ...]
    """The files that were read."""

    def scores(self) -> list[dict[str, Any]]:
        """The figures as fields of the ledger's ScoreEntry."""
        return [
            {"task": f"context-{loss.context}", "metric": name, "filter": "none", "value": value, "num_samples": count}
            for loss in self.contexts
            for name, value, count in (
                ("loss", loss.loss, loss.num_tokens),
                ("seconds_per_token", loss.seconds_per_token, loss.num_tokens),
                ("bytes_per_token", loss.bytes_per_token, loss.num_tokens),
                *((position_metric(part.first, part.last), part.loss, part.num_tokens) for part in loss.positions),
            )
        ]

    def sections(self) -> list[Section]:
        """A row for each context, and then the loss by position, with a column for each context."""
        headings = ("loss", "perplexity", "µs per token", "memory per token")
        rows = [
            (
                Cell(f"{loss.context:,}"),
                Cell(scaling_words(loss)),
                *(figure(loss.loss), figure(loss.perplexity, "{:.4g}")),
                *(figure(loss.seconds_per_token * 1e6, "{:.4g}"), figure(loss.bytes_per_token, byte_count)),
            )
            for loss in self.contexts
        ]
        contexts = Table.of("contexts", [Column("context"), Column("scaling", False), *map(Column, headings)], rows)
        longest = max(self.contexts, key=lambda loss: loss.context)
        by_first = [{part.first: part for part in loss.positions} for loss in self.contexts]
        rows_of_positions = []
        for part in longest.positions:
            beyond = " *" if part.last >= self.trained_length else ""
            same = (own.get(part.first) for own in by_first)
            cells = (figure(own.loss, "{:.3f}") if own else Cell("") for own in same)
            rows_of_positions.append((Cell(f"{part.first:,} to {part.last:,}{beyond}"), *cells))
        columns = [Column("positions", False), *(Column(f"context {loss.context:,}") for loss in self.contexts)]
        positions = Table.of("positions", columns, rows_of_positions)
        note = Paragraph(f"* beyond the {self.trained_length:,} tokens of a training sequence", "note")
        notes = (note,) if longest.context > self.trained_length else ()
        return [
            Section("contexts", "Loss by context", (contexts,)),
            Section("positions", "Loss by position", (positions, *notes)),
        ]


EvalDocument = TextDocument | SplitDocument | TasksDocument | ContextsDocument
"""What `growctl eval --json` prints, by what it evaluates on."""


def scaling_words(loss: ContextLoss) -> str:
    """How the rotary frequencies were scaled, such as `yarn 4x`."""
    return "none" if loss.rope_scaling == "none" else f"{loss.rope_scaling} {loss.factor:g}x"


@dataclass(frozen=True)
class Evaluator:
    """A checkpoint in memory, and how much of a text it reads at once."""

    opened: "Pretrained"
    replicas: "Replicas"
    tokenizer: Path | None
    """A tokenizer given in place of the checkpoint's own."""
    context: int | None
    batch_size: int
    on_progress: Callable[[float], None]
    """Receives the fraction done."""

    def on_text(self, files: Sequence[Path], stride: int | None) -> TextDocument:
        """The loss on files, in windows that are `stride` tokens apart. Raises UserError for a stride that skips
        tokens."""
        from stages.evaluate.text import text_loss

        started, context = time.monotonic(), self._window()
        if stride is not None and stride > context:
            raise UserError(f"--stride {stride}: must be at most the context of {context} tokens, or text is left out")
        size: dict[str, Any] = {"context": context, "stride": stride or context}
        loss = text_loss(
            self.opened, self.replicas, files, **size, batch_size=self.batch_size, on_progress=self.on_progress
        )
        return TextDocument(**vars(loss), **size, **self._facts(started), text=_resolved(files))

    def on_split(self, split: "SplitName", data: Path | None, sequences: int | None, runs_dir: Path) -> SplitDocument:
        """The loss on a split of a dataset, in the trainer's windows."""
        from growctl.find_checkpoint import dataset_of
        from stages.evaluate.text import dataset_loss

        started, context = time.monotonic(), self._window()
        dataset = dataset_of(self.opened.directory, data, runs_dir)
        loss = dataset_loss(
            self.opened,
            self.replicas,
            dataset,
            split,
            context=context,
            max_sequences=sequences,
            batch_size=self.batch_size,
            on_progress=self.on_progress,
        )
        where: dict[str, Any] = {"dataset": dataset.resolve(), "split": split, "sequences": sequences}
        return SplitDocument(**vars(loss), **where, context=context, stride=context, **self._facts(started))

    def on_tasks(
        self, manager: "TaskManager", names: list[str], limit: int | None, include_path: Path | None
    ) -> tuple[TasksDocument, dict[str, Any]]:
        """The scores on tasks of lm-evaluation-harness, and on those in `include_path`; and all that it reports."""
        from importlib.metadata import version

        from stages.evaluate.harness import GrowctlLM
        from stages.evaluate.tasks import run_tasks

        started, context = time.monotonic(), self._window()
        size = {"context": context, "batch_size": self.batch_size}
        lm = GrowctlLM(self.opened, self.replicas, **size, on_progress=self.on_progress)
        scores, report = run_tasks(lm, manager, names, limit)
        document = TasksDocument(
            tasks=scores,
            lm_eval=version("lm_eval"),
            context=context,
            trained_length=self.opened.text.context_length or context,
            limit=limit,
            include_path=include_path and include_path.resolve(),
            **self._facts(started),
        )
        return document, report

    def at_contexts(
        self, files: Sequence[Path], contexts: list[int], rope_scaling: RopeScaling, max_tokens: int
    ) -> ContextsDocument:
        """The loss on files in windows of each length, on the first device alone."""
        from stages.evaluate.long_context import context_losses

        started, trained_length = time.monotonic(), self._window()
        losses = context_losses(
            self.opened,
            self.replicas.only_first(),
            files,
            contexts,
            kind=None if rope_scaling == "none" else rope_scaling,
            trained_length=trained_length,
            max_tokens=max_tokens,
            on_progress=self.on_progress,
        )
        return ContextsDocument(
            contexts=tuple(losses),
            trained_length=trained_length,
            rope_scaling=rope_scaling,
            max_tokens=max_tokens,
            text=_resolved(files),
            **self._facts(started),
        )

    def _window(self) -> int:
        """Tokens per window: as many as were asked for, or else those of a training sequence."""
        context = self.context or self.opened.text.context_length
        if context is None:
            raise UserError(
                f"{self.opened.directory} does not say how long its training sequences were; give --context N"
            )
        return context

    def _facts(self, started: float) -> dict[str, Any]:
        """The fields of an Evaluated; the work began when the monotonic clock said `started`."""
        from model.config import num_parameters
        from stages.checkpoint.files import hash_file
        from stages.engine.devices import device_name
        from stages.evaluate.replicas import device_of

        manifest = self.opened.manifest
        sha256 = hash_file(self.tokenizer) if self.tokenizer else None
        return {
            "checkpoint": self.opened.directory,
            "num_parameters": num_parameters(manifest.model),
            "padding_rows": manifest.model.vocab_size - self.opened.num_token_ids,
            "dtype": str(self.replicas.first.embedding.weight.dtype).removeprefix("torch."),
            "devices": tuple(device_name(device_of(model)) for model in self.replicas.models),
            "tokenizer_sha256": None if sha256 == manifest.tokenizer_sha256 else sha256,
            "wall_seconds": round(time.monotonic() - started, 3),
        }


def _resolved(files: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in files)
