"""Opens the training samples of a dataset, whether it is a mixture or not."""

from collections.abc import Sequence
from pathlib import Path

from stages.data.dataset import MixtureEntry, read_dataset_manifest
from stages.data.mixed_samples import MixedSamples
from stages.data.mixture import Mixture, MixtureSource, MixtureStage, WhenExhausted
from stages.data.packed_samples import PackedSamples
from stages.data.source_errors import DataError
from stages.data.training_samples import TrainingSamples
from stages.spec import MixtureSpan, Packing


def open_samples(
    dataset_dir: Path,
    sequence_length: int,
    seed: int,
    mixture: Sequence[MixtureSpan] = (),
    when_exhausted: WhenExhausted = "stop",
    packing: Packing = "concatenate",
) -> TrainingSamples | MixedSamples:
    """The training samples of a dataset, each of `sequence_length` + 1 tokens.

    `mixture` has the weights of a mixture's sources from the ladder's first sample on; empty: the mixture's own weights
    throughout. Raises DataError if the dataset cannot be read or is too short, and if the weights do not fit it.
    """
    sources = read_dataset_manifest(dataset_dir).sources
    if not sources:
        if mixture:
            raise DataError(f"data.mixture: {dataset_dir} is not a mixture, so its sources can have no weights")
        samples = PackedSamples if packing == "best_fit" else TrainingSamples
        return samples(dataset_dir, sequence_length, seed)
    return MixedSamples(
        {source.name: source.dataset(dataset_dir) for source in sources},
        _stages(sources, mixture),
        sequence_length,
        seed,
        {source.name: source.epochs_at_most for source in sources},
        when_exhausted,
        packing,
    )


def read_mixture(
    dataset_dir: Path, sequence_length: int, mixture: Sequence[MixtureSpan], when_exhausted: WhenExhausted
) -> Mixture:
    """The mixture of the samples that `open_samples` opens, from manifests alone. Raises DataError as that does."""
    sources = read_dataset_manifest(dataset_dir).sources
    found = []
    for source in sources:
        num_tokens = read_dataset_manifest(source.dataset(dataset_dir)).splits["train"].num_tokens
        found.append(MixtureSource(source.name, num_tokens, num_tokens // sequence_length, source.epochs_at_most))
    return Mixture(found, _stages(sources, mixture), when_exhausted)


def _stages(sources: Sequence[MixtureEntry], mixture: Sequence[MixtureSpan]) -> list[MixtureStage]:
    if mixture:
        return [MixtureStage(span.first_sample, span.weights) for span in mixture]
    return [MixtureStage(0, {source.name: source.weight for source in sources})]
