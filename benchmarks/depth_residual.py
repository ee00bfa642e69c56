"""Measures what growth in depth does to the residual stream and to the loss in the first steps after it.

    python -m benchmarks.depth_residual > benchmarks/results/depth_residual.json    # a minute or two on an idle core
    python -m benchmarks.depth_residual --growths 1-12 --steps 1 2

A small model (width 64, 16 attention and 64 FFN tokens a layer, bytes of the standard library's source) trains for 60
steps, then grows in depth and trains on at the same constant rate. Every way of growing, and the model without the
growth, sees the same batches. `scratch` is the final depth from the start: its 60 steps come first too. `rms` is the
root mean square of the residual stream: of the embedding, then after each block; `loss` is over 6 fixed sequences.
"""

import argparse
import asyncio
import copy
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.machine import machine
from model.growth import grow_model
from model.initialization import build_model
from model.language_model import LanguageModel
from model.parameter_groups import parameter_groups
from model.policy import GrowthPolicy
from model.tokenformer_config import TokenformerConfig, tokenformer_config

GROWTHS = ((1, 12), (6, 12), (12, 24))
STEPS = (1, 2, 5, 10, 25, 50)
BASE_STEPS, WARMUP, PEAK, WEIGHT_DECAY = 60, 20, 3e-3, 0.1
SEQUENCES, LENGTH = 6, 64


class Way(NamedTuple):
    """A way to grow in depth."""

    policy: GrowthPolicy
    warmup_of_new: int = 0
    """Steps over which the learning rate of the new layers rises to the others'."""


WAYS = {
    "append": Way(GrowthPolicy()),
    "interleave": Way(GrowthPolicy(depth="interleave")),
    "append, random": Way(GrowthPolicy(init="random")),
    "append, new layers warm up": Way(GrowthPolicy(), warmup_of_new=50),
    "copy-stack": Way(GrowthPolicy(depth="copy-stack", allow_jump=True)),
}


def config(num_layers: int) -> TokenformerConfig:
    """The model with this many layers."""
    return tokenformer_config(
        num_layers=num_layers, attention_tokens=16, ffn_tokens=64, vocab_size=256, hidden_size=64, num_heads=4
    )


def batches(text: Tensor, seed: int, sequences: int = SEQUENCES) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless random windows of `text`, as inputs and targets, so many at a time."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - LENGTH - 1, (sequences,), generator=generator).tolist()
        tokens_BT = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        yield tokens_BT[:, :-1], tokens_BT[:, 1:]


class Training:
    """A model with its optimizer."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        groups = parameter_groups(model, WEIGHT_DECAY)
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), fused=True)

    def step(self, batch: tuple[Tensor, Tensor], share: float = 1.0, generation: int | None = None) -> None:
        """One update at `share` of the peak rate, or only `generation` at that share."""
        for group in self.optimizer.param_groups:
            group["lr"] = PEAK * (share if generation in (None, group["generation"]) else 1.0)
        self.model(*batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def grown(self, new_layers: int, policy: GrowthPolicy) -> "Training":
        """A copy with new layers. The moments of the old parameters stay."""
        training = copy.deepcopy(self)
        training.model = grow_model(training.model, new_layers=new_layers, policy=policy, seed=1)
        for group in parameter_groups(training.model, WEIGHT_DECAY)[len(training.optimizer.param_groups) :]:
            training.optimizer.add_param_group(group)
        return training


@torch.no_grad()
def measured(model: LanguageModel, batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """The loss, and the root mean square of the residual stream."""
    streams = [model.embedding(batch[0])]
    hooks = [block.register_forward_hook(lambda _, x, out: streams.append(out)) for block in model.blocks.values()]
    loss = model(*batch).item()
    for hook in hooks:
        hook.remove()
    return {"loss": round(loss, 4), "rms": [round(x.square().mean().sqrt().item(), 3) for x in streams]}


def based(text: Tensor, num_layers: int) -> Training:
    """A new model after the steps of the base."""
    training, data = Training(build_model(config(num_layers), seed=0)), batches(text, seed=1)
    for step in range(1, BASE_STEPS + 1):
        training.step(next(data), share=min(1.0, step / WARMUP))
    return training


def followed(training: Training, text: Tensor, steps: Sequence[int], warmup_of_new: int = 0) -> dict[int, Any]:
    """What is measured after each number of `steps`."""
    data, held_out, found = batches(text, seed=2), next(batches(text, seed=999)), {}
    found[0] = measured(training.model, held_out)
    for step in range(1, max(steps) + 1):
        training.step(next(data), min(1.0, step / (warmup_of_new or 1)), generation=1)
        if step in steps:
            found[step] = measured(training.model, held_out)
    return found


def growth(text: Tensor, old_layers: int, new_layers: int, steps: Sequence[int]) -> dict[str, Any]:
    """Every way of growing from `old_layers` to `new_layers`, with the two models that do not grow."""
    base, found = based(text, old_layers), {}
    for name, way in WAYS.items():
        grown = base.grown(new_layers - old_layers, way.policy)
        found[name] = followed(grown, text, steps, way.warmup_of_new)
        print(f"{old_layers} -> {new_layers}: {name}", file=sys.stderr)
    found["not grown"] = followed(base, text, steps)
    found["scratch"] = followed(based(text, new_layers), text, steps)
    return {"old_layers": old_layers, "new_layers": new_layers, "by_way_and_step": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growths", nargs="+", default=[f"{old}-{new}" for old, new in GROWTHS], help="OLD-NEW layers")
    parser.add_argument("--steps", nargs="+", type=int, default=STEPS, help="steps to measure after")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = sorted(Path(asyncio.__file__).parent.parent.glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    pairs = [tuple(map(int, pair.split("-"))) for pair in arguments.growths]
    document = {
        "measured_at": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "growths": [growth(text, old, new, arguments.steps) for old, new in pairs],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
