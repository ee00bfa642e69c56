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
    window_length: int | None = None,
) -> TrainingSamples | MixedSamples:
    """The training samples of a dataset, each of `sequence_length` + 1 tokens.

    `mixture` has the weights of a mixture's sources from the ladder's first window on; empty: the mixture's own weights
    throughout. `window_length`: the longest context of the ladder, on whose windows the order is defined; by default
    `sequence_length`. Raises DataError if the dataset cannot be read or is too short, and if the weights do not fit it.
    """
    sources = read_dataset_manifest(dataset_dir).sources
    if not sources:
        if mixture:
            raise DataError(f"data.mixture: {dataset_dir} is not a mixture, so its sources can have no weights")
        if packing == "best_fit":
            assert window_length in (None, sequence_length), "packed windows are not read in pieces"
            return PackedSamples(dataset_dir, sequence_length, seed)
        return TrainingSamples(dataset_dir, sequence_length, seed, window_length)
    return MixedSamples(
        {source.name: source.dataset(dataset_dir) for source in sources},
        _stages(sources, mixture),
        sequence_length,
        seed,
        {source.name: source.epochs_at_most for source in sources},
        when_exhausted,
        packing,
        window_length,
    )


def read_mixture(
    dataset_dir: Path, window_length: int, mixture: Sequence[MixtureSpan], when_exhausted: WhenExhausted
) -> Mixture:
    """The mixture of the samples that `open_samples` opens, by windows, from manifests alone. Raises as that does."""
    sources = read_dataset_manifest(dataset_dir).sources
    found = []
    for source in sources:
        num_tokens = read_dataset_manifest(source.dataset(dataset_dir)).splits["train"].num_tokens
        found.append(MixtureSource(source.name, num_tokens, window_length, source.epochs_at_most))
    return Mixture(found, _stages(sources, mixture), when_exhausted)


def _stages(sources: Sequence[MixtureEntry], mixture: Sequence[MixtureSpan]) -> list[MixtureStage]:
    if mixture:
        return [MixtureStage(span.first_window, span.weights) for span in mixture]
    return [MixtureStage(0, {source.name: source.weight for source in sources})]
