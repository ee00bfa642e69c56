"""What `growctl eval --json` prints."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from stages.evaluate.long_context import ContextLoss
    from stages.evaluate.tasks import TaskResults
    from stages.evaluate.text import TextLoss


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What every evaluation depends on, beside the text or the tasks."""

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
    recorded_in: Path | None
    """The ledger that the figures were recorded in; null outside a run, and while the run trains."""


@dataclass(frozen=True, kw_only=True)
class TextFigures:
    """The loss on a text."""

    num_tokens: int
    """Tokens predicted: all but the first of the text, with the end of text after each document."""

    loss: float
    """Mean cross-entropy, nats per token."""

    perplexity: float | None
    """exp(loss); null if that overflows."""

    word_perplexity: float | None
    """exp(loss x tokens / words); null if that overflows, and for a split, whose words are not counted."""

    bits_per_byte: float
    num_documents: int
    num_words: int | None
    """Words of the whole text, between white space; null for a split."""

    num_bytes: int
    """UTF-8 bytes of the whole text."""

    context: int
    """Tokens per window."""

    stride: int
    """Tokens from one window to the next."""


@dataclass(frozen=True, kw_only=True)
class TextDocument(TextFigures, Evaluated):
    """The loss on files, with --text."""

    text: tuple[Path, ...]
    """The files that were read."""


@dataclass(frozen=True)
class SourceFigures:
    """The loss on one source of a mixture."""

    num_tokens: int
    """Tokens predicted."""

    loss: float
    """Mean cross-entropy, nats per token."""

    bits_per_byte: float
    weight: float
    """Its share of the loss of the mixture; the shares add up to 1."""


@dataclass(frozen=True, kw_only=True)
class SplitDocument(TextFigures, Evaluated):
    """The loss on a split of a dataset, with --split."""

    dataset: Path
    split: Literal["train", "validation"]
    sequences: int | None
    """The number of windows; null: all."""

    by_source: dict[str, SourceFigures] | None
    """The sources of a mixture by name; null for a dataset that is not a mixture. `loss` and `bits_per_byte` of a
    mixture are the means of its sources' by base weights."""


@dataclass(frozen=True)
class TaskScoreEntry:
    """One metric of one task."""

    task: str
    metric: str
    """As lm_eval names it: `acc`, `acc_norm`, `perplexity`, `word_perplexity`, ..."""

    filter: str
    """How answers were extracted; `none` for tasks that compare probabilities."""

    value: float | None
    """null if it is not finite."""

    standard_error: float | None
    num_samples: int | None
    """Examples evaluated; null for a group of tasks."""

    num_shots: int | None
    """Solved examples in the prompt."""

    version: str
    """The version of the task in lm_eval."""


@dataclass(frozen=True, kw_only=True)
class TasksDocument(Evaluated):
    """The scores on benchmark tasks, with --tasks."""

    tasks: tuple[TaskScoreEntry, ...]
    lm_eval: str
    """The version of lm-evaluation-harness."""

    context: int
    """Tokens per window."""

    trained_length: int
    """Tokens of a training sequence."""

    limit: int | None
    """Examples of each task; null: all."""

    include_path: Path | None


@dataclass(frozen=True)
class PositionsEntry:
    """Consecutive positions of the windows."""

    first: int
    last: int
    """The last position, included."""

    loss: float
    """Mean cross-entropy, nats per token."""

    num_tokens: int
    """Tokens predicted."""


@dataclass(frozen=True, kw_only=True)
class ContextEntry:
    """The loss in windows of one length."""

    context: int
    """Tokens per window."""

    rope_scaling: Literal["none", "linear", "ntk", "yarn"]
    factor: float
    """How many times longer the window is than a training sequence; 1 without scaling."""

    num_tokens: int
    """Tokens predicted."""

    loss: float
    """Mean cross-entropy, nats per token."""

    perplexity: float | None
    """exp(loss); null if that overflows."""

    wall_seconds: float
    seconds_per_token: float
    """Wall seconds of the forward pass and the loss, per token."""

    bytes_per_token: float | None
    """Memory that a batch needed beside the model, per token; null if it is not known."""

    positions: tuple[PositionsEntry, ...]


@dataclass(frozen=True, kw_only=True)
class ContextsDocument(Evaluated):
    """The loss at long contexts, with --contexts."""

    contexts: tuple[ContextEntry, ...]
    trained_length: int
    """Tokens of a training sequence."""

    rope_scaling: Literal["none", "linear", "ntk", "yarn"]
    max_tokens: int
    """Tokens of the text that were read, at most."""

    text: tuple[Path, ...]
    """The files that were read."""


EvalDocument = TextDocument | SplitDocument | TasksDocument | ContextsDocument
"""What `growctl eval --json` prints, by what it evaluates on."""


def text_figures(found: "TextLoss") -> dict[str, Any]:
    """The figures of a text, as fields of a TextFigures."""
    return {
        "num_tokens": found.num_scored,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "word_perplexity": found.word_perplexity,
        "bits_per_byte": found.bits_per_byte,
        "num_documents": found.num_documents,
        "num_words": found.num_words,
        "num_bytes": found.num_bytes,
    }


def split_figures(found: "TextLoss") -> dict[str, Any]:
    """The figures of a split, as fields of a SplitDocument."""
    sources = {
        source.name: SourceFigures(
            num_tokens=source.found.num_scored,
            loss=source.found.loss,
            bits_per_byte=source.found.bits_per_byte,
            weight=source.weight,
        )
        for source in found.by_source
    }
    return text_figures(found) | {"by_source": sources or None}


def task_figures(results: "TaskResults") -> dict[str, Any]:
    """The scores of all tasks, as fields of a TasksDocument."""
    return {"tasks": tuple(TaskScoreEntry(**score._asdict()) for score in results.scores)}


def context_figures(found: "Sequence[ContextLoss]") -> dict[str, Any]:
    """What was found at each context, as fields of a ContextsDocument."""
    entries = tuple(
        ContextEntry(
            context=each.context,
            rope_scaling=each.scaling.kind if each.scaling else "none",
            factor=each.scaling.factor if each.scaling else 1.0,
            num_tokens=each.num_scored,
            loss=each.loss,
            perplexity=each.perplexity,
            wall_seconds=round(each.seconds, 3),
            seconds_per_token=each.seconds_per_token,
            bytes_per_token=each.bytes_per_token,
            positions=tuple(PositionsEntry(b.first, b.last, b.loss, b.num_scored) for b in each.buckets),
        )
        for each in found
    )
    return {"contexts": entries}
