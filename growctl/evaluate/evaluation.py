"""`growctl eval`: the loss on text, on a split or at long contexts, and scores on tasks. Slow modules are imported on
use.

A document is the one record of an evaluation: `--json` dumps it, its sections are shown, its scores are recorded.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from growctl.text.documents import plain
from growctl.text.formatting import byte_count, short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Section, Table, figure
from model.errors import UserError
from model.tokenformer_config import PATTENTIONS
from model.top_tokens import TopTokens, require_tokens
from stages.evaluate.results import Reading, Score, positions_of

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from stages.checkpoint.pretrained import Pretrained
    from stages.data.spec import SplitName

PER_STEP = 8
"""Windows or requests that are computed at a time, by default."""

STEP_TOKENS = 8192
"""Tokens of windows that are computed at a time, by default, if PER_STEP windows are fewer."""

NARROW = 256
"""Models narrower than this run on one thread of a CPU: their matrices are too small to share out."""

RopeScaling = Literal["none", "linear", "ntk", "yarn"]


@dataclass(frozen=True, kw_only=True)
class EvalDocument:
    """The scores of a checkpoint, and what they depend on."""

    checkpoint: Path
    num_parameters: int
    padding_rows: int
    """Rows of the embedding that no token has."""
    device: str
    """The name of the device."""
    wall_seconds: float
    settings: dict[str, Any]
    """What the scores depend on beside the checkpoint, as the ledger records it: text or tasks, context, dtype, and the
    sha256 of a tokenizer that is not the checkpoint's own."""
    scores: tuple[Score, ...]
    readings: tuple[Reading, ...] = ()
    """With `--top-k-tokens`, the loss at each number of parameter tokens read; the first is that of `scores`."""
    recorded_in: Path | None = None
    """The ledger that the scores were recorded in; null outside a run, and while the run trains."""

    def sections(self) -> list[Section]:
        """A row for each score; of several contexts a column for each, and a row for each metric."""
        seen = ", on text that it trained on" if "trained_on" in self.settings else ""
        if "rope_scaling" in self.settings:
            return [self._contexts(seen)]
        headings = ("value", "standard error", "samples", "shots")
        columns = [Column("task", False), Column("metric", False), *map(Column, headings)]
        rows = [
            (
                Cell(score.task),
                Cell(score.metric if score.filter == "none" else f"{score.metric}, {score.filter}"),
                *(figure(score.value), figure(score.standard_error)),
                *(figure(score.num_samples, "{:,}"), figure(score.num_shots, "{:,}")),
            )
            for score in self.scores
        ]
        parts = Table.of("scores", columns, rows), *readings_parts(self.readings)
        return [Section("scores", f"Scores of {self.checkpoint}{seen}", parts)]

    def _contexts(self, seen: str) -> Section:
        by_context: dict[int, dict[str, Score]] = {}
        for score in self.scores:
            by_context.setdefault(int(score.task.removeprefix("context-")), {})[score.metric] = score
        trained_length, scaling = self.settings["trained_length"], self.settings["rope_scaling"]
        words = {
            context: f"{context:,}" + (f", {scaling} {context / trained_length:g}x" if is_scaled else "")
            for context in by_context
            for is_scaled in [scaling != "none" and context > trained_length]
        }
        metrics = dict.fromkeys(metric for scores in by_context.values() for metric in scores)
        rows = []
        for metric in sorted(metrics, key=lambda metric: (positions_of(metric) or (-1,))[0]):
            label, shown = _metric_words(metric, trained_length)
            own = (scores.get(metric) for scores in by_context.values())
            rows.append((Cell(label), *(figure(score.value, shown) if score else Cell("") for score in own)))
        columns = [Column("", False), *(Column(f"context {words[context]}") for context in by_context)]
        note = Paragraph(f"* beyond the {trained_length:,} tokens of a training sequence", "note")
        notes = (note,) if max(by_context) > trained_length else ()
        return Section("contexts", f"Loss by context and position{seen}", (Table.of("contexts", columns, rows), *notes))


def readings_parts(readings: Sequence[Reading]) -> Iterator[Part]:
    """A table of the losses by number of parameter tokens read and kind of Pattention, and one by layer if they were
    measured; nothing without readings."""
    if not readings:
        return
    rows, by_layer = [], dict[int, list[Reading]]()
    for reading in readings:
        if reading.layer is not None:
            by_layer.setdefault(reading.layer, []).append(reading)
    whole = (reading for reading in readings if reading.layer is None)
    for amount, group in groupby(whole, key=lambda reading: str(reading.amount)):
        kinds = {reading.kind: reading for reading in group}
        size = figure(kinds[None].share, "{:.1%}"), figure(kinds[None].flops_per_token, short_count)
        losses = (figure(kinds[kind].loss if kind in kinds else None) for kind in (None, *PATTENTIONS))
        rows.append((Cell(amount), *size, *losses))
    columns = [Column("tokens", False), *map(Column, ("share", "FLOPs", "all", *PATTENTIONS))]
    yield Paragraph("Loss by parameter tokens read, in all Pattentions and in those of one kind alone", "heading")
    note = "Share and FLOPs per data token are for all. Every key counts: the scores decide which values are read."
    yield Table.of("readings", columns, rows, note)
    if by_layer:
        yield Paragraph("Loss by parameter tokens read in one layer alone", "heading")
        columns = [Column("layer", False), *(Column(str(reading.amount)) for reading in by_layer[0])]
        rows = [(Cell(f"{layer}"), *(figure(each.loss) for each in found)) for layer, found in by_layer.items()]
        yield Table.of("readings-by-layer", columns, rows)


def _metric_words(metric: str, trained_length: int) -> tuple[str, str | Callable[[float], str]]:
    """A metric as people read it, and the form of its values."""
    if positions := positions_of(metric):
        first, last = positions
        return f"loss at {first:,} to {last:,}" + (" *" if last >= trained_length else ""), "{:.3f}"
    if metric == "bytes_per_token":
        return "memory per token", byte_count
    return metric.replace("_", " "), "{:.4g}"


@dataclass(frozen=True)
class Evaluator:
    """A checkpoint in memory, and how much of a text it reads at once."""

    opened: "Pretrained"
    tokenizer: Path | None
    """A tokenizer given in place of the checkpoint's own."""
    context: int | None
    batch_size: int | None
    on_progress: Callable[[float], None]
    """Receives the fraction done."""
    tops: Sequence[TopTokens] = ()
    """Numbers of parameter tokens to read besides all."""

    def on_text(self, files: Sequence[Path], stride: int | None) -> EvalDocument:
        """The loss on files, in windows that are `stride` tokens apart. Raises UserError for a stride that skips
        tokens."""
        from stages.evaluate.text import text_loss

        context = self._window()
        if stride is not None and stride > context:
            raise UserError(f"--stride {stride}: must be at most the context of {context} tokens, or text is left out")
        size: dict[str, Any] = {"context": context, "stride": stride or context}
        compute = partial(text_loss, self.opened, files, **size, batch_size=self._at_once(context))
        return self._document(compute, context, **size, **self._text(files))

    def on_split(self, split: "SplitName", data: Path | None, sequences: int | None, runs_dir: Path) -> EvalDocument:
        """The loss on a split of a dataset, in the trainer's windows."""
        from growctl.find_checkpoint import dataset_of
        from stages.evaluate.text import dataset_loss

        dataset = dataset_of(self.opened.directory, data, runs_dir)
        where: dict[str, Any] = {"dataset": dataset.resolve(), "split": split, "sequences": sequences}
        if image := self.opened.manifest.model.image:
            from stages.evaluate.images import image_scores  # needs the extra for images

            images: dict[str, Any] = {"max_images": sequences, "batch_size": self.batch_size or PER_STEP}
            compute = partial(image_scores, self.opened, dataset, split, **images)
            return self._document(compute, image.sequence_length, **where)
        context = self._window()
        size: dict[str, Any] = {"max_sequences": sequences, "batch_size": self._at_once(context), "context": context}
        compute = partial(dataset_loss, self.opened, dataset, split, **size)
        return self._document(compute, context, context=context, stride=context, **where)

    def on_tasks(
        self, manager: "TaskManager", names: list[str], limit: int | None, include_path: Path | None
    ) -> EvalDocument:
        """The scores on tasks of lm-evaluation-harness, and on those in `include_path`."""
        from importlib.metadata import version

        from stages.evaluate.harness import GrowctlLM
        from stages.evaluate.tasks import task_scores

        context = self._window()
        size = {"context": context, "batch_size": self.batch_size or PER_STEP}
        lm = GrowctlLM(self.opened, **size, on_progress=self.on_progress)
        return self._document(
            lambda on_progress: task_scores(lm, manager, names, limit),
            context,
            context=context,
            limit=limit,
            lm_eval=version("lm_eval"),
            trained_length=self.opened.text.context_length or context,
            include_path=include_path and include_path.resolve(),
        )

    def at_contexts(
        self, files: Sequence[Path], contexts: list[int], rope_scaling: RopeScaling, max_tokens: int
    ) -> EvalDocument:
        """The loss on files in windows of each length."""
        from stages.evaluate.long_context import context_losses

        trained_length = self._window()
        compute = partial(
            context_losses,
            self.opened,
            files,
            contexts,
            kind=None if rope_scaling == "none" else rope_scaling,
            trained_length=trained_length,
            max_tokens=max_tokens,
        )
        settings = {"rope_scaling": rope_scaling, "max_tokens": max_tokens}
        return self._document(compute, trained_length, trained_length=trained_length, **self._text(files), **settings)

    def _text(self, files: Sequence[Path]) -> dict[str, Any]:
        """The files, and whether one is of the model's training text, where the checkpoint says what that was."""
        from stages.corpus.location import one_spelling

        text, source = [str(file.resolve()) for file in files], one_spelling(self.opened.text.source or "://")
        is_of_training = any(file == source or fnmatch(file, part) for file in text for part in (source, f"{source}/*"))
        return {"text": text} | ({"trained_on": "this text"} if is_of_training else {})

    def _window(self) -> int:
        """Tokens per window: as many as were asked for, or else those of a training sequence."""
        if self.opened.manifest.model.image:
            raise UserError(f"{self.opened.directory} is a model of images; evaluate it with --split")
        context = self.context or self.opened.text.context_length
        if context is None:
            raise UserError(
                f"{self.opened.directory} does not say how long its training sequences were; give --context N"
            )
        return context

    def _at_once(self, context: int) -> int:
        return self.batch_size or max(PER_STEP, STEP_TOKENS // context)

    def _document(self, compute: Callable[..., Iterable[Score]], length: int, **settings: Any) -> EvalDocument:
        """The document of the scores that `compute`, which takes `on_progress`, gives under `settings`. FLOPs of
        readings are those of sequences of `length` data tokens."""
        import torch

        from model.shapes import num_parameters
        from stages.checkpoint.files import hash_file
        from stages.engine.devices import device_name
        from stages.evaluate.readings import KINDS, readings

        require_tokens(self.opened.manifest.model, self.tops)
        numbers, times = count(), 1 + len(KINDS) * len(self.tops)

        def scores() -> tuple[Score, ...]:
            number = next(numbers)
            return tuple(compute(on_progress=lambda done: self.on_progress((number + done) / times)))

        if self.opened.manifest.model.hidden_size < NARROW:
            torch.set_num_threads(1)
        started, found, manifest = time.monotonic(), scores(), self.opened.manifest
        read = tuple(readings(self.opened.model, self.tops, length, _loss(found), lambda: _loss(scores())))
        weight = self.opened.model.embedding.weight
        settings["dtype"] = str(weight.dtype).removeprefix("torch.")
        sha256 = hash_file(self.tokenizer) if self.tokenizer else manifest.tokenizer_sha256
        if sha256 != manifest.tokenizer_sha256:
            settings["tokenizer"] = sha256
        return EvalDocument(
            checkpoint=self.opened.directory,
            num_parameters=num_parameters(manifest.model),
            padding_rows=manifest.model.vocab_size - self.opened.num_token_ids,
            device=device_name(weight.device),
            wall_seconds=round(time.monotonic() - started, 3),
            settings=plain(settings),
            scores=found,
            readings=read,
        )


def _loss(scores: Iterable[Score]) -> float:
    """The loss of the whole text, or of the images; 0 of tasks, which have none."""
    return next((score.value for score in scores if score.metric == "loss" and score.value is not None), 0.0)
