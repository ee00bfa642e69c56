"""Text as a task: the training samples of one rank, and the validation loss on its share of the windows.

Shapes: B micro-batch, T sequence, S sources.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
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
from stages.stage_dir import TOKENIZER_NAME
from stages.train.rank_data import EXPECTED_SAMPLES, Arrays, RankData, read_ahead
from stages.train.skipped_data import consumed, trained_ranges


class TextData(RankData):
    """The next token of a text or a mixture of texts."""

    def __init__(self, spec: TrainSpec, rank: int, world_size: int, device: torch.device) -> None:
        """Opens the dataset. Raises DataError if a file is missing or a split is too short."""
        super().__init__(spec, rank, world_size, device)
        dataset = Path(spec.dataset)
        self.tokenizer = dataset / TOKENIZER_NAME
        self.manifest = read_dataset_manifest(dataset)
        self.fingerprint = self.manifest.fingerprint
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

    def read(self, first_sample: int) -> Arrays:
        """Input ids and targets of a micro-batch, each (B, T) int64."""
        return inputs_and_targets(self.samples.batch(first_sample, self.spec.micro_batch_size))

    def expect(self, first_sample: int) -> None:
        """Begins to fetch a micro-batch, if its tokens are remote."""
        self.samples.expect(first_sample, self.spec.micro_batch_size)

    def facts(self) -> dict[str, Any]:
        """The tokenizer, and what a model needs to read and write the text."""
        text = self.manifest.text_facts(self.spec.sequence_length)
        return {"tokenizer_sha256": self.manifest.tokenizer_sha256, "text": text}

    def evaluation(self, run: Callable[..., Tensor], step: int) -> Record:
        """What an EvaluationLine says of the losses `run(input_ids_BT, targets_BT)` after `step` steps. Collective."""
        spec = self.spec
        per_pass = evaluation_batch(spec.micro_batch_size, spec.sequence_length, spec.evaluation_length)
        use = source_use(self.samples, spec, step) if self.samples.mixture else None
        result = evaluate(run, self.windows, per_pass, self.device, use)
        if self.own_windows:
            own = evaluate(run, self.own_windows, spec.micro_batch_size, self.device)
            result |= {"own_context_loss": own["loss"], "own_context_tokens": own["num_tokens"]}
        return result


def inputs_and_targets(tokens_BT: Int64Array) -> Arrays:
    """The T inputs and the T shifted targets of T + 1 tokens: each (B, T)."""
    return tokens_BT[:, :-1], tokens_BT[:, 1:]


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
        lambda number: inputs_and_targets(windows.batch(*ranges[number][1:])),
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
