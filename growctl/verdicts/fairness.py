"""What differs between two runs in a way that matters for a comparison of their losses, and how much it may matter.

Builds on the conditions that the ledgers record (growctl/ladder/conditions.py). Nothing here depends on which of the
two runs comes first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from growctl.analysis.data_groups import dataset_name
from growctl.analysis.runs import RunReport
from growctl.ladder.conditions import DOCUMENT_KEYS, meant_to_differ
from growctl.text.formatting import short_count
from stages.counted import counted

Grade = Literal["decides", "matters", "minor"]
"""How much a difference may matter. `decides`: with it, a lower loss shows nothing about the training. `matters`: it
may change the loss as much as growing does. `minor`: it hardly changes the loss."""

GRADES: tuple[Grade, ...] = ("decides", "matters", "minor")

EQUAL_FLOPS_TOLERANCE = 0.02
"""The largest relative difference in FLOPs at which two runs count as equally expensive."""

_SHOWN_SETTINGS = 3
"""The most settings of one topic to show with their values."""


@dataclass(frozen=True)
class Difference:
    """One thing that differs between two runs, A and B."""

    what: str
    a: str
    b: str
    grade: Grade
    why: str
    """Why it has that grade, in a sentence or two."""
    keys: tuple[str, ...] = ()
    """The keys of the schedule behind it, dotted; empty for what is no setting."""
    by_design: bool = False
    """Whether one run is a control, which is there to differ from the other in this."""

    @property
    def mirrored(self) -> "Difference":
        """The same difference with A and B exchanged."""
        return Difference(self.what, self.b, self.a, self.grade, self.why, self.keys, self.by_design)


@dataclass(frozen=True)
class _Topic:
    """Conditions that one sentence explains."""

    what: str
    prefixes: tuple[str, ...]
    grade: Grade
    why: str


_AMOUNT = _Topic(
    *("amount of validation text", ("evaluation.max_sequences",), "matters"),
    "The losses were measured on different shares of the validation text, and one part of a text is easier than "
    "another.",
)

_TOPICS = (
    _Topic(
        *("start checkpoint", ("start.",), "decides"),
        "A run that starts from a checkpoint has learned from training that it did not do itself. Compare costs only "
        "if the cost of the checkpoint is known and counted.",
    ),
    _Topic(
        *("context", ("training.sequence_length",), "matters"),
        "With a longer context, a model sees more text before each token that it predicts, so its loss is lower.",
    ),
    _Topic(
        *("context by stage", ("stages.sequence_length",), "matters"),
        "A stage with a shorter context trains on more tokens for the same FLOPs, and sees less text before each.",
    ),
    _AMOUNT,
    _Topic(*("evaluation", ("evaluation.",), "matters"), "The losses were not measured in the same way."),
    _Topic(
        *("model family", ("model.family",), "matters"),
        "The architectures differ. A learning rate that suits one need not suit the other.",
    ),
    _Topic(
        *("vocabulary", ("model.vocab_size",), "minor"),
        "The parameters and FLOPs of the embedding and of the output layer grow with the vocabulary.",
    ),
    _Topic(
        *("shape of the model", ("model.",), "matters"),
        "The models differ in more than their number of parameter tokens, so a difference may come from their shape.",
    ),
    _Topic(
        *("batch", ("training.batch_size",), "matters"),
        "A smaller batch makes more updates from as many tokens, and the best learning rate depends on the batch.",
    ),
    _Topic(
        *("batch by stage", ("stages.batch_size",), "matters"),
        "A smaller batch makes more updates from as many tokens, which pays early in training.",
    ),
    _Topic(
        *("precision", ("precision", "training.precision"), "matters"),
        "bf16 rounds every product, so training may end at another loss. The losses themselves are measured in fp32.",
    ),
    _Topic(
        *("documents", DOCUMENT_KEYS, "matters"),
        "A model that attends within documents sees less before a token, and packing cuts fewer documents. Both change "
        "the loss.",
    ),
    _Topic(*("training", ("training.",), "matters"), "The runs were not trained in the same way."),
    _Topic(
        *("learning rate", ("learning_rate.",), "matters"),
        "Peak, warm-up and decay change the final loss, often by more than growing does.",
    ),
    _Topic(*("optimizer", ("optimizer.",), "matters"), "Another optimizer may end at another loss for the same cost."),
    _Topic(
        *("growth", ("growth.",), "matters"),
        "How new parameter tokens start and train changes the loss after a growth.",
    ),
    _Topic(
        *("seed", ("seed",), "minor"),
        "Seeds change the loss by chance. A difference no larger than that between seeds shows nothing: train several "
        "seeds of each.",
    ),
    _Topic(*("other conditions", ("",), "matters"), "growctl compares only runs that share this condition."),
)
"""The first topic with a prefix of a condition's path explains it."""


def differing_conditions(a: RunReport, b: RunReport) -> Iterator[tuple[str, Any, Any]]:
    """The conditions in which two runs differ, by path: the path, and what each run has there; None for nothing.

    Precision counts as it was used, if both runs recorded it. Datasets are compared by their fingerprints.
    """
    values, others = (run.conditions | _precision(run) for run in (a, b))
    both_known = bool(a.precisions and b.precisions)
    for path in sorted(values | others):
        if path.startswith("data.") and path not in DOCUMENT_KEYS:
            continue
        if path == ("training.precision" if both_known else "precision"):
            continue
        if values.get(path) != others.get(path):
            yield path, values.get(path), others.get(path)


def unmeant_conditions(ladder: RunReport, control: RunReport) -> Iterator[tuple[str, Any, Any]]:
    """The conditions in which a control differs from its ladder, without those in which its kind is meant to."""
    for path, ladders, its in differing_conditions(ladder, control):
        if not meant_to_differ(path, control.control or "", control.conditions.get("model.family")):
            yield path, ladders, its


def fairness(a: RunReport, b: RunReport, runs: Sequence[RunReport] = ()) -> tuple[Difference, ...]:
    """What differs between `a` and `b`, what may matter most first. `runs`: all runs, to count those of sweeps."""
    found = [*_data(a, b), *_ends(a, b), *_settings(a, b), *_sizes(a, b), *_tuning(a, b, runs)]
    return tuple(sorted(found, key=lambda difference: GRADES.index(difference.grade)))


def _precision(run: RunReport) -> dict[str, str]:
    return {"precision": " and ".join(sorted(run.precisions))} if run.precisions else {}


def _data(a: RunReport, b: RunReport) -> Iterator[Difference]:
    """The datasets: their tokenizers and texts, as far as the ledgers record them."""
    if a.dataset_fingerprint == b.dataset_fingerprint:
        return
    pairs = {path: (a.conditions.get(path), b.conditions.get(path)) for path in _DATA}
    if not all(value and other for value, other in pairs.values()):
        yield Difference(
            *("dataset", dataset_name(a), dataset_name(b), "decides"),
            "The datasets differ, and the ledgers do not record whether their tokenizers or their texts do.",
        )
        return
    differing = {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}
    for path, (value, other) in differing.items():
        what, why = _DATA[path]
        yield Difference(what, str(value)[:12], str(other)[:12], "decides", why)
    if not differing:
        yield Difference(
            *("order of the documents", dataset_name(a), dataset_name(b), "minor"),
            "Both datasets hold the same text and tokenizer, but in another order.",
        )
    if "data.validation_text" not in differing and not _differs_in(a, b, _AMOUNT):
        share, other_share = _measured_share(a), _measured_share(b)
        if None not in (share, other_share) and share != other_share:
            yield Difference(_AMOUNT.what, f"{share:.0%}", f"{other_share:.0%}", _AMOUNT.grade, _AMOUNT.why)


def _differs_in(a: RunReport, b: RunReport, topic: _Topic) -> bool:
    return any(a.conditions.get(path) != b.conditions.get(path) for path in topic.prefixes)


def _measured_share(run: RunReport) -> float | None:
    """The share of the validation text that losses are measured on, to a hundredth; None if it is not known."""
    most, length = (run.conditions.get(path) for path in ("evaluation.max_sequences", "training.sequence_length"))
    if most is None:
        return 1.0
    return round(min(1.0, most * length / run.validation_tokens), 2) if run.validation_tokens and length else None


_DATA = {
    "data.tokenizer": (
        "tokenizer",
        "The tokens of two tokenizers hold different amounts of text, so losses per token and perplexities cannot be "
        "compared. Compare bits per byte.",
    ),
    "data.train_text": (
        "training text",
        "The models learned from different text, so a lower loss may come from the text and not from the training.",
    ),
    "data.validation_text": (
        "validation text",
        "Losses on different texts cannot be compared, in bits per byte neither.",
    ),
}
"""What each hash of a dataset is of, and why a difference decides."""


def _ends(a: RunReport, b: RunReport) -> Iterator[Difference]:
    """Whether the runs ended in finished models."""
    if a.finished != b.finished:
        words = {True: "finished", False: "not finished"}
        yield Difference(
            *("end", words[a.finished], words[b.finished], "decides"),
            "A run that is not finished has no final loss.",
        )
    if a.decays != b.decays:
        words = {True: "decays", False: "never decays"}
        yield Difference(
            *("decay of the learning rate", words[a.decays], words[b.decays], "decides"),
            "A model's loss falls while its learning rate decays. Without a decay it has not reached its best loss.",
        )


def _settings(a: RunReport, b: RunReport) -> Iterator[Difference]:
    """The conditions that differ, by topic, first those that are not meant to."""
    by_topic: dict[tuple[bool, _Topic], list[tuple[str, Any, Any]]] = {}
    for path, value, other in differing_conditions(a, b):
        topic = next(topic for topic in _TOPICS if path.startswith(topic.prefixes))
        by_topic.setdefault((_is_by_design(path, a, b), topic), []).append((path, value, other))
    for (by_design, topic), found in sorted(by_topic.items(), key=lambda item: (item[0][0], _TOPICS.index(item[0][1]))):
        keys = tuple(path for path, _, _ in found)
        why = f"A control is there to differ in this. {topic.why}" if by_design else topic.why
        value, other = _shown(topic, found, 1), _shown(topic, found, 2)
        yield Difference(topic.what, value, other, topic.grade, why, keys, by_design)


def _is_by_design(path: str, a: RunReport, b: RunReport) -> bool:
    """Whether a control differs in `path` from its ladder, or from another control of it, by design."""
    if (a.control_of or a.name) != (b.control_of or b.name):
        return False
    families = ((run.control, run.conditions.get("model.family")) for run in (a, b))
    return any(control and meant_to_differ(path, control, family) for control, family in families)


def _shown(topic: _Topic, found: Sequence[tuple[str, Any, Any]], side: Literal[1, 2]) -> str:
    """The values of one run; with their keys, if there are several."""
    if len(found) == 1 and found[0][0] in topic.prefixes:
        return "all" if topic is _AMOUNT and found[0][side] is None else _text(found[0][side])
    texts = [f"{entry[0].rpartition('.')[2]} {_text(entry[side])}" for entry in found[:_SHOWN_SETTINGS]]
    left_out = len(found) - len(texts)
    return ", ".join([*texts, f"{left_out} more"] if left_out else texts)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _sizes(a: RunReport, b: RunReport) -> Iterator[Difference]:
    """The parameters at the end, and the steps of all stages."""
    if not (a.stages and b.stages):
        return
    if (size := _size(a)) != (other_size := _size(b)):
        yield Difference(
            *("parameters", size, other_size, "matters"),
            "A larger model costs more for every token, in training and in use. The count includes the embeddings.",
        )
    steps, other_steps = (sum(stage.num_steps for stage in run.stages) for run in (a, b))
    if steps != other_steps:
        costs = [run.cumulative_flops for run in (a, b)]
        alike = max(costs) <= min(costs) * (1 + EQUAL_FLOPS_TOLERANCE)
        yield Difference(
            *("steps", f"{steps:,}", f"{other_steps:,}", "minor" if alike else "matters"),
            "A step of a larger model or batch costs more, so steps are no measure of cost: compare runs at equal "
            "FLOPs.",
        )


def _size(run: RunReport) -> str:
    last = run.stages[-1]
    embeddings = last.num_embedding_parameters
    share = f", {short_count(embeddings)} of them embeddings" if embeddings is not None else ""
    return f"{short_count(last.num_parameters)}{share}"


def _tuning(a: RunReport, b: RunReport, runs: Sequence[RunReport]) -> Iterator[Difference]:
    """How many settings were tried for each run, in the set of runs that it belongs to."""
    (tried, keys), (others, other_keys) = (_tried(run, runs) for run in (a, b))
    if tried != others:
        yield Difference(
            *("tuning", _settings_tried(tried, keys), _settings_tried(others, other_keys), "matters"),
            "The best of several settings is better than a single one even by chance. Tune both runs equally hard.",
        )


def _tried(run: RunReport, runs: Sequence[RunReport]) -> tuple[int, list[str]]:
    """The number of different settings, apart from seeds, in a run's set, and the keys that were swept."""
    in_set = [run, *(other for other in runs if run.group and (other.group, other.control) == (run.group, run.control))]
    points = {
        tuple(sorted((key, str(value)) for key, value in other.overrides.items() if key != "seed")) for other in in_set
    }
    return len(points), sorted({key for point in points for key, _ in point})


def _settings_tried(number: int, keys: Sequence[str]) -> str:
    text = f"{counted(number, 'setting')} tried"
    return f"{text} ({', '.join(keys)})" if keys and number > 1 else text
