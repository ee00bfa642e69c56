"""One evaluation of a checkpoint in memory: on text, on a split, on tasks, or at long contexts.

Slow modules are imported on use.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from growctl.evaluate.document import (
    ContextsDocument,
    Evaluated,
    SplitDocument,
    TasksDocument,
    TextDocument,
    context_figures,
    split_figures,
    task_figures,
    text_figures,
)
from growctl.text.progress import progress_bar

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager
    from rich.console import Console

    from growctl.evaluate.settings import Windows
    from stages.checkpoint.pretrained import Pretrained
    from stages.data.corpus import SplitName
    from stages.evaluate.replicas import Replicas


@dataclass(frozen=True)
class Outcome:
    """What an evaluation found."""

    kind: type[Evaluated]
    """The document for scripts. Its fields are `figures`, `settings`, and what all evaluations depend on."""

    figures: dict[str, Any]
    settings: dict[str, Any]
    """What the result depends on beside the checkpoint, as JSON values."""

    scores: list[dict[str, Any]]
    """The result as the fields of ledger entries."""

    show: "Callable[[Console], None]"
    """Prints it for people."""

    output: dict[str, Any] | None = None
    """All that lm-evaluation-harness reports."""

    png: Callable[[], bytes] | None = None
    """Draws the picture of --picture."""


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint in memory, and how much of a text it reads at once."""

    opened: "Pretrained"
    replicas: "Replicas"
    context: int | None
    batch_size: int

    def on_text(self, files: list[Path], stride: int | None) -> Outcome:
        """The loss on files, in windows that are `stride` tokens apart."""
        from growctl.evaluate.tables import print_text, text_scores
        from stages.evaluate.text import text_loss

        cut = self._windows(stride)
        with progress_bar("reading text") as on_progress:
            found = text_loss(
                self.opened,
                self.replicas,
                files,
                context=cut.context,
                stride=cut.stride,
                batch_size=self.batch_size,
                on_progress=on_progress,
            )
        settings = {"context": cut.context, "stride": cut.stride, "text": [str(path.resolve()) for path in files]}
        return Outcome(TextDocument, text_figures(found), settings, text_scores(found), partial(print_text, found))

    def on_split(self, split: "SplitName", data: Path | None, sequences: int | None, runs_dir: Path) -> Outcome:
        """The loss on a split of a dataset, in the trainer's windows."""
        from growctl.evaluate.tables import print_text, text_scores
        from growctl.find_checkpoint import dataset_of
        from stages.evaluate.text import dataset_loss

        dataset = dataset_of(self.opened.directory, data, runs_dir)
        context = self._windows(None).context
        with progress_bar("reading the dataset") as on_progress:
            found = dataset_loss(
                self.opened,
                self.replicas,
                dataset,
                split,
                context=context,
                max_sequences=sequences,
                batch_size=self.batch_size,
                on_progress=on_progress,
            )
        settings = {"context": context, "stride": context, "dataset": str(dataset.resolve()), "split": split}
        settings |= {"sequences": sequences}
        return Outcome(SplitDocument, split_figures(found), settings, text_scores(found), partial(print_text, found))

    def on_tasks(
        self, manager: "TaskManager", names: list[str], limit: int | None, include_path: Path | None
    ) -> Outcome:
        """The scores on tasks of lm-evaluation-harness, and on those in `include_path`."""
        from growctl.evaluate.tables import print_scores, task_scores
        from stages.evaluate.harness import GrowctlLM
        from stages.evaluate.tasks import run_tasks

        context = self._windows(None).context
        with progress_bar("running tasks") as on_progress:
            lm = GrowctlLM(
                self.opened, self.replicas, context=context, batch_size=self.batch_size, on_progress=on_progress
            )
            results = run_tasks(lm, manager, names, limit)
        settings = {"context": context, "limit": limit, "lm_eval": results.lm_eval}
        settings |= {"trained_length": self.opened.text.context_length or context}
        settings |= {"include_path": str(include_path.resolve()) if include_path else None}
        show = partial(print_scores, results)
        return Outcome(
            TasksDocument, task_figures(results), settings, task_scores(results), show, output=results.document
        )

    def at_contexts(
        self,
        files: list[Path],
        contexts: list[int],
        rope_scaling: Literal["none", "linear", "ntk", "yarn"] | None,
        max_tokens: int,
    ) -> Outcome:
        """The loss on files in windows of each length, on the first device alone."""
        from growctl.evaluate.long_context import contexts_png, contexts_scores, print_contexts
        from stages.evaluate.long_context import context_losses

        trained_length = self._windows(None).context
        kind = None if rope_scaling == "none" else rope_scaling
        with progress_bar("reading windows") as on_progress:
            found = list(
                context_losses(
                    self.opened,
                    self.replicas.only_first(),
                    files,
                    contexts,
                    kind=kind,
                    trained_length=trained_length,
                    max_tokens=max_tokens,
                    on_progress=on_progress,
                )
            )
        settings = {"trained_length": trained_length, "text": [str(path.resolve()) for path in files]}
        settings |= {"rope_scaling": rope_scaling or "none", "max_tokens": max_tokens}
        show = partial(print_contexts, found, trained_length)
        png = partial(contexts_png, found, trained_length)
        return Outcome(ContextsDocument, context_figures(found), settings, contexts_scores(found), show, png=png)

    def _windows(self, stride: int | None) -> "Windows":
        from growctl.evaluate.settings import windows_for

        return windows_for(self.opened.manifest, self.opened.directory, self.context, stride)
