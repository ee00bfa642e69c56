"""Runs whose losses follow a known law of growth, with noise."""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from growctl.draft.sizes import SHAPES, Size, Vocabularies, model_of
from growctl.runs.runs import RunReport, StageReport
from model.flops import training_flops_per_token
from model.shapes import num_parameters

TEXT = Vocabularies(most=1024)
LAW = (1.1, 40.0, 0.35, 900.0, 0.45)
"""E, A, a, B, b."""
WORTH = {"constant": -0.3, "before": -0.25}
"""ln w."""
NOISE = 0.018
SIZES = (16, 32, 64, 96, 160)
LENGTHS = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)
Step = tuple[int, int, float]
"""Layers, attention tokens and data tokens."""


def model_of_step(step: Step) -> Any:
    """The model that a step trains."""
    return model_of(SHAPES[0], TEXT, Size(step[0], step[1], 0))


def loss_of(steps: Sequence[Step], law: Sequence[float] = LAW, worth: Mapping[str, float] = WORTH) -> float:
    """The law, written once more, for all parameters."""
    E, A, a, B, b = law
    sizes = [num_parameters(model_of_step(step)) for step in steps]
    effective = steps[0][2]
    for (old, new), (before, after) in zip(pairwise(steps), pairwise(sizes), strict=True):
        deeper, wider = old[0] != new[0], old[1] != new[1]
        terms = {"constant": 1.0, "ratio": math.log(after / before), "before": math.log(effective / before / 20)}
        terms |= {"after": math.log(new[2] / after / 20), "depth": deeper, "together": deeper and wider}
        effective = math.exp(sum(worth.get(name, 0.0) * terms[name] for name in terms)) * effective + new[2]
    return E + A / sizes[-1] ** a + B / effective**b


def run_of(name: str, steps: Sequence[Step], loss: float, seed: int = 0, **conditions: Any) -> RunReport:
    """A finished run that ends with `loss`."""
    stages, so_far = [], 0.0
    values: dict[str, Any] = {"model.vocab_size": 1024, "model.num_heads": 4, "learning_rate.peak": 0.012, "seed": seed}
    values |= {
        "optimizer.name": "muon",
        "learning_rate.decay": 0.25,
        "growth.ramp": 0.05,
        "model.family": "tokenformer",
    }
    for number, step in enumerate(steps):
        model, is_last = model_of_step(step), number == len(steps) - 1
        flops = training_flops_per_token(model, 64).total * step[2]
        so_far += flops
        shape = {"num_layers": step[0], "hidden_size": 64, "attention_tokens": step[1], "ffn_tokens": 4 * step[1]}
        shape |= {"batch_size": 64, "sequence_length": 64}
        values |= {f"stages.{number}.{key}": value for key, value in shape.items()}
        stage = StageReport(
            name=f"{number}",
            num_parameters=num_parameters(model),
            num_layers=step[0],
            finished=True,
            num_steps=1,
            train_tokens=round(step[2]),
            flops=flops,
            cumulative_flops=so_far,
            validation_loss=loss if is_last else 9.0,
            decayed=is_last,
        )
        stages.append(stage)
    entry: dict[str, Any] = {"name": name, "recorded_name": name, "schedule": name, "control": None, "control_of": None}
    entry |= {"seed": seed, "dataset": "data", "dataset_fingerprint": "f00d", "conditions": values | conditions}
    return RunReport(**entry, stages=tuple(stages), directory=Path(name))


def grown_steps(number: int, axes: Sequence[str], seed: int = 0) -> list[list[Step]]:
    """Ladders drawn at random."""
    draw, found = random.Random(seed), list[list[Step]]()
    while len(found) < number:
        axis = draw.choice(axes)
        layers, tokens = draw.choice([2, 3]), draw.choice(SIZES[:3])
        new = {"tokens": (layers, tokens * draw.choice([2, 4])), "depth": (2 * layers, tokens)}
        new["both"] = (layers + 1, 2 * tokens)
        sizes = [num_parameters(model_of_step((*shape, 0))) for shape in ((layers, tokens), new[axis])]
        before, after = sizes[0] * math.exp(draw.uniform(2.3, 4.6)), sizes[1] * math.exp(draw.uniform(1.6, 3.7))
        found.append([(layers, tokens, before), (*new[axis], after)])
    return found


def study(
    law: Sequence[float] = LAW,
    worth: Mapping[str, float] = WORTH,
    noise: float = NOISE,
    axes: Sequence[str] = ("tokens", "depth"),
    num_grown: int = 24,
    seed: int = 0,
) -> list[RunReport]:
    """Five sizes at five lengths from scratch, three seeds for two of the lengths, and ladders."""
    draw, runs = random.Random(seed), []
    for tokens in SIZES:
        for length in LENGTHS:
            for each in range(3 if length in LENGTHS[1:3] else 1):
                steps = [(3, tokens, length)]
                loss = loss_of(steps, law, worth) + draw.gauss(0, noise)
                runs.append(run_of(f"scratch-{tokens}-{length}-{each}", steps, loss, each))
    for number, ladder in enumerate(grown_steps(num_grown, axes, seed)):
        runs.append(run_of(f"grown-{number}", ladder, loss_of(ladder, law, worth) + draw.gauss(0, noise)))
    return runs
