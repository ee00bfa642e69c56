"""Mixtures of datasets for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.samples import TrainingSamples
from stages.spec import MixtureSpan


def spans_of(*spans: tuple[int, Mapping[str, float]]) -> list[MixtureSpan]:
    """The spans that begin at these windows with these weights."""
    return [MixtureSpan(first_window=first, weights=dict(weights)) for first, weights in spans]


def mixed_samples(
    datasets: Mapping[str, Path],
    spans: Sequence[MixtureSpan],
    length: int,
    seed: int,
    most: Mapping[str, float] = {},
    **options: Any,
) -> TrainingSamples:
    """The samples of a mixture of `datasets`, written beside the first one. `most`: how often each may be read."""
    ingredients = [Ingredient(name, path, 1.0, most.get(name)) for name, path in datasets.items()]
    mixture = write_mixture(ingredients, next(iter(datasets.values())).parent)
    return TrainingSamples(mixture, length, seed, spans, **options)
