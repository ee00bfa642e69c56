"""The data of one rank: its share of the training samples, and the validation loss on its share of the windows.

Each micro-batch is read while the previous one is computed.

Shapes: B micro-batch, T sequence, S sources.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stages.data.dataset import read_dataset_manifest
from stages.data.evaluation_windows import EvaluationWindows, WindowsOfSource
from stages.data.samples import TrainingSamples
from stages.data.tokens import Int64Array
from stages.metrics import Record
from stages.spec import TrainSpec, evaluation_batch
from stages.train.skipped_data import consumed, position, trained_ranges

EXPECTED_SAMPLES = 64
"""Samples of which remote tokens are fetched ahead: several for each request that is under way at a time."""


class RankData:
    """What one rank reads of the dataset of a stage."""

    def __init__(self, spec: TrainSpec, rank: int, world_size: int, device: torch.device) -> None:
        """Opens the dataset. Raises DataError if a file is missing or a split is too short."""
        self.spec, self.rank, self.world_size, self.device = spec, rank, world_size, device
        dataset = Path(spec.dataset)
        self.manifest = read_dataset_manifest(dataset)
        self.samples = TrainingSamples(
            dataset,
            spec.sequence_length,
            spec.seed,
            spec.mixture,
            spec.when_exhausted,
            spec.packing,
            spec.window_length,
        )
        self.windows = EvaluationWindows(dataset, "validation", spec.evaluation_length, spec.evaluation_sequences)
        self.own_windows = (
            None
            if spec.evaluation_length == spec.sequence_length
            else EvaluationWindows(dataset, "validation", spec.sequence_length, spec.own_evaluation_sequences)
        )
        """The validation text at the stage's own context; None if that is `evaluation_length`."""
        self._wait_seconds = 0.0

    def micro_batches(self, step: int) -> Generator[tuple[Tensor, Tensor]]:
        """Yields this rank's inputs and targets, each (B, T) int64 on the device, from `step` to the stage's end."""
        spec, size = self.spec, self.spec.micro_batch_size
        firsts = (
            spec.samples_seen + position(number, spec.left_out) * spec.batch_size
            for number in range(step, spec.num_steps)
        )
        own = range(self.rank * size, spec.batch_size, self.world_size * size)
        positions = (first + offset for first in firsts for offset in own)
        return read_ahead(
            lambda position: self.samples.batch(position, size),
            positions,
            self.device,
            expect=lambda position: self.samples.expect(position, size),
            num_expected=max(1, EXPECTED_SAMPLES // size),
            on_wait=self._waited,
        )

    def take_wait_seconds(self) -> float:
        """How long this rank has waited for training data since the last call."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return seconds

    def _waited(self, seconds: float) -> None:
        self._wait_seconds += seconds

    def manifest_fields(self, step: int) -> dict[str, Any]:
        """What the manifest of a checkpoint says of the data after `step` steps."""
        spec = self.spec
        return {
            "samples_seen": spec.samples_seen + consumed(step, spec.left_out) * spec.batch_size,
            "seed": spec.seed,
            "dataset_fingerprint": self.manifest.fingerprint,
            "tokenizer_sha256": self.manifest.tokenizer_sha256,
            "text": self.manifest.text_facts(spec.sequence_length),
        }

    def evaluation(self, loss_of: Callable[[Tensor, Tensor], Tensor], step: int) -> Record:
        """What an EvaluationLine says of the losses `loss_of(input_ids_BT, targets_BT)` after `step` steps. Collective.

        The loss is that at the context of the ladder's last stage, so that the losses of all stages compare.
        """
        spec = self.spec
        per_pass = evaluation_batch(spec.micro_batch_size, spec.sequence_length, spec.evaluation_length)
        use = source_use(self.samples, spec, step) if self.samples.mixture else None
        result = evaluate(loss_of, self.windows, per_pass, self.device, use)
        if self.own_windows:
            own = evaluate(loss_of, self.own_windows, spec.micro_batch_size, self.device)
            result |= {"own_context_loss": own["loss"], "own_context_tokens": own["num_tokens"]}
        return result


def source_use(samples: TrainingSamples, spec: TrainSpec, step: int) -> dict[str, Record]:
    """How much of each source was read after `step` updates of a stage, by name, as a SourceEvaluation says it.

    Data that rollbacks skipped is not trained. Epochs count from the ladder's first sample on.
    """
    epochs = samples.epochs_by_source(spec.samples_seen + consumed(step, spec.left_out) * spec.batch_size)
    tokens = dict.fromkeys(epochs, 0)
    for first, num_steps in trained_ranges(step, spec.left_out):
        found = samples.tokens_by_source(spec.samples_seen + first * spec.batch_size, num_steps * spec.batch_size)
        tokens = {name: number + found[name] for name, number in tokens.items()}
    return {name: {"trained_tokens": number, "epochs": epochs[name]} for name, number in tokens.items()}


@torch.no_grad()
def evaluate(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    windows: EvaluationWindows,
    batch_size: int,
    device: torch.device,
    use: Mapping[str, Record] | None = None,
) -> Record:
    """Runs `loss_of(input_ids_BT, targets_BT)` (mean nats) over all `windows`, `batch_size` sequences at a time.

    Returns what an EvaluationLine says of a loss (stages/metrics_lines.py). `use`: what it says of each source of a
    mixture besides, by name.

    Collective: each rank takes every world-size-th batch. All ranks run the same number of batches, as ZeRO-3 requires;
    a rank without further batches repeats the split's first and does not count it. Sums are float64, by source.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    every = windows.batches(batch_size)
    mine = every[rank::world_size]
    num_batches = math.ceil(len(every) / world_size)
    ranges = [*mine, *[every[0]] * (num_batches - len(mine))]
    totals_S2 = torch.zeros(len(windows.sources), 2, dtype=torch.float64, device=device)
    batches = read_ahead(
        lambda number: windows.batch(*ranges[number][1:]),
        range(num_batches),
        device,
        expect=lambda number: windows.expect(*ranges[number][1:]),
        num_expected=max(1, EXPECTED_SAMPLES // batch_size),
    )
    with closing(batches):
        for number, (input_ids_BT, targets_BT) in enumerate(batches):
            loss = loss_of(input_ids_BT, targets_BT)
            if number < len(mine):
                num_tokens = targets_BT.numel()
                source = mine[number][0]
                totals_S2[source, 0] += loss.double() * num_tokens
                totals_S2[source, 1] += num_tokens
    dist.all_reduce(totals_S2)
    return _evaluation(totals_S2.tolist(), windows.sources, use or {})


def _evaluation(
    totals: Sequence[tuple[float, float]], sources: Sequence[WindowsOfSource], use: Mapping[str, Record]
) -> Record:
    """The result, from the sum of losses and the number of tokens of each source."""
    losses = [total / num_tokens for total, num_tokens in totals]
    bits = [loss / math.log(2) / source.bytes_per_token for loss, source in zip(losses, sources, strict=True)]
    num_tokens = [int(tokens) for _, tokens in totals]
    mean = sum(source.weight * loss for source, loss in zip(sources, losses, strict=True))
    by_source = {
        source.name: {"loss": losses[i], "bits_per_byte": bits[i], "num_tokens": num_tokens[i]} | use[source.name]
        for i, source in enumerate(sources)
        if source.name and source.name in use
    }
    return {
        "loss": mean,
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
        "bits_per_byte": sum(source.weight * each for source, each in zip(sources, bits, strict=True)),
        "num_tokens": sum(num_tokens),
        "by_source": by_source or None,
    }


def read_ahead(
    read: Callable[[int], Int64Array],
    positions: Iterable[int],
    device: torch.device,
    *,
    expect: Callable[[int], None] = lambda position: None,
    num_expected: int = 0,
    on_wait: Callable[[float], None] = lambda seconds: None,
) -> Generator[tuple[Tensor, Tensor]]:
    """Yields inputs and targets, each (B, T) int64 on `device`, from the (B, T + 1) tokens at each of `positions`.

    A thread calls `read` one position ahead. An exception from `read` is raised here when its micro-batch is requested.
    `expect` gets each position `num_expected` positions before that, so that remote tokens are fetched in time.
    `on_wait` gets the seconds that each micro-batch was waited for. The thread ends with the generator; use
    `contextlib.closing` if the generator may not be exhausted. On CUDA, copies are asynchronous, from pinned memory.
    """
    on_cuda = device.type == "cuda"

    def on_host(tokens_BT: Int64Array) -> Tensor:
        # Copy with numpy: torch would start a second set of OpenMP threads that compete with the model's.
        tensor_BT = torch.empty(tokens_BT.shape, dtype=torch.int64, pin_memory=on_cuda)
        tensor_BT.numpy()[...] = tokens_BT
        return tensor_BT

    def prepared(position: int) -> tuple[Tensor, Tensor]:
        tokens_BT = read(position)
        return on_host(tokens_BT[:, :-1]), on_host(tokens_BT[:, 1:])

    # A new thread uses CUDA's first device, not this rank's. Pinning memory there would create a context on it.
    initial: dict[str, Any] = {"initializer": torch.cuda.set_device, "initargs": (device,)} if on_cuda else {}
    rest = iter(positions)
    expected: deque[int] = deque()

    def following() -> list[int]:
        for place in islice(rest, num_expected + 1 - len(expected)):
            expect(place)
            expected.append(place)
        return [expected.popleft()] if expected else []

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead", **initial) as thread:
        ahead = [thread.submit(prepared, position) for position in following()]
        while ahead:
            start = time.perf_counter()
            input_ids_BT, targets_BT = ahead.pop().result()
            on_wait(time.perf_counter() - start)
            ahead = [thread.submit(prepared, position) for position in following()]
            yield input_ids_BT.to(device, non_blocking=True), targets_BT.to(device, non_blocking=True)
