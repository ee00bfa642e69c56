"""Training samples as random-access sources for torch's DataLoader, grain and other loaders.

Shape: T sequence.
"""

from abc import ABC, abstractmethod
from operator import index
from typing import overload

from stages.data.sample_order import Int64Array


class EndlessSamples(ABC):
    """A sequence of samples without an end. Each sample follows from its index alone.

    `samples[i]` is one sample; `samples[first:stop]` is a SampleRange, which has a length.
    """

    @abstractmethod
    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""

    def expect(self, first_index: int, count: int) -> None:  # noqa: B027 (most samples need no notice)
        """Begins to fetch samples that will be read soon, if their tokens are remote."""

    @overload
    def __getitem__(self, place: int) -> Int64Array: ...
    @overload
    def __getitem__(self, place: slice) -> "SampleRange": ...
    def __getitem__(self, place: int | slice) -> "Int64Array | SampleRange":
        if isinstance(place, slice):
            first, stop = place.start or 0, place.stop
            if stop is None or first < 0 or stop < 0 or place.step not in (None, 1):
                raise IndexError(f"{place}: samples have no end, so a range of them needs a stop of 0 or more, no step")
            return SampleRange(self, first, stop)
        if index(place) < 0:
            raise IndexError(f"sample {place}: samples are counted from 0 and have no end")
        return self.batch(index(place), 1)[0]


class SampleRange:
    """Samples `first_index` to `stop_index` as a sequence: each (T + 1,) int64, T inputs and T shifted targets.

    It can be pickled, so a loader can hand it to its processes.
    """

    def __init__(self, samples: EndlessSamples, first_index: int, stop_index: int) -> None:
        self._samples = samples
        self._indices = range(first_index, stop_index)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Int64Array:
        return self._samples[self._indices[place]]
