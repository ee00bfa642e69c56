"""Reports of runs that never were, with losses and costs as a test wants them."""

import math
from pathlib import Path
from typing import Any

from growctl.runs.runs import RunReport, StageReport

FLOPS = 1e12
"""The cost of an invented ladder."""


def run_report(
    name: str,
    loss: float | None,
    *,
    seed: int = 0,
    sizes: tuple[int, ...] = (1000, 2000),
    budget: float = 1.0,
    kind: str | None = None,
    of: str | None = None,
    **fields: Any,
) -> RunReport:
    """A run of `budget` x FLOPs with that final loss; None: it is not finished, not finite: it diverged."""
    conditions = {"seed": seed, "model.family": "tokenformer"} | fields.pop("conditions", {})
    overrides = fields.pop("overrides", {})
    stages = []
    for index, size in enumerate(sizes, 1):
        spent = budget * FLOPS * index / len(sizes)
        is_last = index == len(sizes)
        final = loss if is_last else 3.0
        diverged = final is not None and not math.isfinite(final)
        stages.append(
            StageReport(
                name=f"s{size}",
                num_parameters=size,
                num_steps=100,
                train_tokens=1000,
                flops=budget * FLOPS / len(sizes),
                cumulative_flops=spent,
                validation_loss=None if diverged else final,
                perplexity=math.inf if diverged else None if final is None else math.exp(final),
                finished=final is not None,
                decayed=is_last,
                planned_steps=100,
            )
        )
    return RunReport(
        name=name,
        recorded_name=name,
        run_id=name,
        schedule="s",
        control=kind,
        control_of=of,
        stages=tuple(stages),
        dataset="",
        dataset_fingerprint="f00d",
        directory=Path("runs") / name,
        conditions=conditions,
        seed=seed,
        overrides=overrides,
        **fields,
    )


def seed_runs(
    seed: int,
    loss: float | None,
    controls: dict[float, float | None],
    *,
    ladder: str = "q",
    kind: str = "tokenformer-scratch",
    **fields: Any,
) -> list[RunReport]:
    """A ladder of one seed, and its controls of the last size: losses by budget."""
    name = f"{ladder}-seed-{seed}"
    runs = [run_report(name, loss, seed=seed, **fields)]
    for budget, its in controls.items():
        own = f"{name}-control-{kind}-{budget:g}x"
        runs.append(run_report(own, its, seed=seed, sizes=(2000,), budget=budget, kind=kind, of=name, **fields))
    return runs
