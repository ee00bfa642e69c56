"""Asks whether Muon should orthogonalise the generations of a Pattention apart, as growctl does, or as one matrix.

    python -m benchmarks.muon_generations > benchmarks/results/muon_generations.json    # 20 minutes on one idle core

Plain PyTorch: a model of the quickstart's second size (without its vocabulary: it reads bytes) trains on the source of
the standard library, grows to the last size at 40 % of its FLOPs, and trains on, under one warm-up and one decay.
`apart`: each generation's update is orthogonal by itself. `joined`: the momenta of all generations are one matrix.
Growth, batches and budget are the same; the seeds differ in all three.
"""

import asyncio
import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.machine import options, print_results
from model.config_growth import ramp_config
from model.flops import training_flops_per_token
from model.growth import grow_model
from model.initialization import build_model
from model.parameter_names import group_kind
from model.policy import GrowthPolicy
from model.tokenformer import Tokenformer
from model.tokenformer_config import tokenformer_config

SEQUENCES, EVALUATED = 64, 512
STEPS, GROW_AT, WARMUP, DECAY, RAMP_STEPS = 1000, 0.4, 30, 0.25, 30
PEAK, MUON_SCALE, MOMENTUM, WEIGHT_DECAY = 1.2e-2, 1.6, 0.95, 0.1
LENGTH = 64
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration of Muon (Keller Jordan, 2024), which DeepSpeed uses too."""

BASE = tokenformer_config(
    num_layers=3, attention_tokens=32, ffn_tokens=128, vocab_size=256, hidden_size=64, num_heads=4
)


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix with about the same singular vectors and singular values near 1."""
    a, b, c = NEWTON_SCHULZ
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


def batches(text: Tensor, seed: int, sequences: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless random windows of `text`, as inputs and targets, so many at a time."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - LENGTH - 1, (sequences,), generator=generator).tolist()
        tokens_BT = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        yield tokens_BT[:, :-1], tokens_BT[:, 1:]


class Training:
    """A model with Muon for the matrices of its blocks and AdamW for the rest."""

    def __init__(self, model: Tokenformer, joined: bool) -> None:
        self.model, self.joined = model, joined
        self.momenta: dict[str, Tensor] = {}
        self.adamw = torch.optim.AdamW(self._others(), lr=PEAK, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)

    def _others(self) -> list[nn.Parameter]:
        named = self.model.named_parameters()
        return [parameter for name, parameter in named if group_kind(name, parameter.ndim, "muon") != "muon"]

    def step(self, batch: tuple[Tensor, Tensor], rate: float) -> None:
        """One update."""
        self.adamw.param_groups[0]["lr"] = rate
        self.model(*batch).backward()
        self.adamw.step()
        with torch.no_grad():
            self._muon(rate * MUON_SCALE, rate)
        self.model.zero_grad()

    def _muon(self, muon_rate: float, rate: float) -> None:
        matrices: dict[str, list[tuple[nn.Parameter, Tensor]]] = {}
        for name, parameter in self.model.named_parameters():
            if group_kind(name, parameter.ndim, "muon") == "muon":
                assert parameter.grad is not None
                momentum = self.momenta.setdefault(name, torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - MOMENTUM)
                whole = re.sub(r"\.\d+$", "", name) if self.joined else name  # a name ends in its generation
                matrices.setdefault(whole, []).append((parameter, parameter.grad.lerp(momentum, MOMENTUM)))
        for parts in matrices.values():
            update = orthogonal(torch.cat([update for _, update in parts]))
            update *= max(1.0, update.shape[0] / update.shape[1]) ** 0.5
            for (parameter, _), own in zip(parts, update.split([len(each) for each, _ in parts]), strict=True):
                parameter.mul_(1 - rate * WEIGHT_DECAY).sub_(own, alpha=muon_rate)

    def grown(self, joined: bool, seed: int) -> "Training":
        """A copy with twice the parameter tokens. Momenta and moments of the old parameters stay."""
        made = copy.copy(self)
        made.joined, made.momenta = joined, {name: momentum.clone() for name, momentum in self.momenta.items()}
        old = copy.deepcopy(self.model)  # a grown model shares the old parameters
        larger = grow_model(old, attention_tokens=32, ffn_tokens=128, policy=GrowthPolicy(), seed=seed)
        assert isinstance(larger, Tokenformer)
        made.model = larger
        made.adamw = torch.optim.AdamW(made._others(), lr=PEAK, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
        made.adamw.load_state_dict(copy.deepcopy(self.adamw.state_dict()))
        return made


def rate_at(step: int) -> float:
    """The learning rate of a step, counted from 1: warm-up, constant, linear decay."""
    return PEAK * min(1.0, step / WARMUP, (STEPS - step) / (DECAY * STEPS))


@torch.no_grad()
def loss_of(model: Tokenformer, held_out: Tensor) -> float:
    """The loss over fixed windows of the held-out text, in nats per byte."""
    data = batches(held_out, 999, SEQUENCES)
    return sum(model(*next(data)).item() for _ in range(EVALUATED // SEQUENCES)) * SEQUENCES / EVALUATED


def trained(text: Tensor, held_out: Tensor, seed: int) -> dict[str, float]:
    """Final losses of both ways with a seed, from the same base."""
    growth = round(GROW_AT * STEPS)
    model, data = build_model(BASE, seed=seed), batches(text, seed, SEQUENCES)
    assert isinstance(model, Tokenformer)
    base = Training(model, joined=False)
    for step in range(1, growth + 1):
        base.step(next(data), rate_at(step))
    rest, found = [next(data) for _ in range(STEPS - growth)], {}
    for way in ("apart", "joined"):
        training = base.grown(way == "joined", seed)
        for number, batch in enumerate(rest, 1):
            if number <= RAMP_STEPS:
                training.model.set_scales(ramp_config(training.model.config, number / RAMP_STEPS))
            training.step(batch, rate_at(growth + number))
        found[way] = loss_of(training.model, held_out)
        print(f"seed {seed}, {way}: {found[way]:.4f}", file=sys.stderr)
    return found


def main() -> None:
    """Trains both ways with each seed, and prints the results."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = sorted(Path(asyncio.__file__).parent.parent.rglob("*.py"))
    texts = [file.read_bytes() for file in files if not {"test", "site-packages"} & {*file.parts}]
    data = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).long()
    cut = len(data) * 9 // 10
    by_seed = {seed: trained(data[:cut], data[cut:], seed) for seed in arguments.seeds}
    print_results(arguments.note, flops_per_token=training_flops_per_token(BASE, LENGTH).total, by_seed=by_seed)


if __name__ == "__main__":
    main()
