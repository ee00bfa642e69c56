"""How much a stage has trained on each source of a mixture. Imports no torch."""

from typing import NamedTuple

from stages.data.samples import MixedSamples
from stages.spec import TrainSpec
from stages.train.skipped_data import consumed, trained_ranges


class SourceUse(NamedTuple):
    """How much of one source was read."""

    trained_tokens: int
    """Its data tokens that the stage has trained on."""

    epochs: float
    """How often it was read, from the ladder's first sample on."""


def source_use(samples: MixedSamples, spec: TrainSpec, step: int) -> dict[str, SourceUse]:
    """The use of each source, by name, after `step` updates of a stage. Data that rollbacks skipped is not trained."""
    tokens = dict.fromkeys(samples.names, 0)
    for first, num_steps in trained_ranges(step, spec.left_out):
        found = samples.tokens_by_source(spec.samples_seen + first * spec.batch_size, num_steps * spec.batch_size)
        tokens = {name: number + found[name] for name, number in tokens.items()}
    read = spec.samples_seen + consumed(step, spec.left_out) * spec.batch_size
    epochs = samples.epochs_by_source(read)
    return {name: SourceUse(number, epochs[name]) for name, number in tokens.items()}
