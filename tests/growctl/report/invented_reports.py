"""Reports of runs that never were, for tests of what compares two runs."""

import math
from pathlib import Path
from typing import Any

from growctl.runs.runs import RunReport, StageReport


def run_report(name: str, sizes: tuple[int, ...] = (1000, 2000), kind: str | None = None, **fields: Any) -> RunReport:
    """A finished run that ends at a loss of 2.0, with a stage for each of `sizes`."""
    stages = [
        StageReport(
            name=f"s{size}",
            num_parameters=size,
            num_steps=100,
            train_tokens=1000,
            flops=1e12,
            cumulative_flops=1e12 * number,
            validation_loss=2.0,
            perplexity=math.exp(2.0),
            finished=True,
            decayed=number == len(sizes),
            planned_steps=100,
        )
        for number, size in enumerate(sizes, 1)
    ]
    known: dict[str, Any] = {
        "schedule": "s",
        "seed": 0,
        "dataset": "",
        "dataset_fingerprint": "f00d",
        "control_of": None,
    }
    known |= {"recorded_name": name, "run_id": name, "directory": Path("runs") / name}
    return RunReport(name=name, control=kind, stages=tuple(stages), **known | fields)
