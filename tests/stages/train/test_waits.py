"""Between log lines, the training loop never waits for the device.

Nothing is waited for on a CPU, but it is the same code: a value that leaves its tensor for Python would wait on a GPU.
"""

import json
import os
import sys
import traceback
from collections import Counter
from itertools import product, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from model.config_growth import ramp_config
from model.initialization import build_model
from model.precision import Precision
from stages.checkpoint.lineage import TrainingRecord
from stages.engine.engine import build_engine
from stages.engine.engine_state import start_moments
from stages.engine.rank_process import start_distributed
from stages.process.watchdog import Watchdog
from stages.spec import Anomalies
from stages.stage_dir import StagePaths
from stages.train.anomaly_guard import Guard
from stages.train.worker import Worker
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec
from tests.workers import REPOSITORY, launch

KINDS: list[tuple[int, Precision]] = list(product((1, 2, 3), ("bf16", "fp32")))
STEPS = 2


class Waits(TorchDispatchMode):
    """Counts how often Python reads a tensor's value (`item`, `bool`, `float`, `tolist`, ...), by caller."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.places[_asking()] += 1
        return func(*args, **(kwargs or {}))


def _asking() -> str:
    for frame in reversed(traceback.extract_stack()[:-2]):
        path = Path(frame.filename)
        if "deepspeed" in path.parts:
            return "deepspeed"
        if path.is_relative_to(REPOSITORY) and ".venv" not in path.parts:
            return str(path.relative_to(REPOSITORY))
    return "?"


class Watched(Worker):
    """Only the training loop, always over the same tokens. Every step's loss is looked at for a spike."""

    def __init__(self, zero_stage: int, precision: Precision) -> None:
        config = ramp_config(small_config(), 0.5)
        self.spec = small_spec(
            config, zero_stage=zero_stage, precision=precision, num_steps=2 * STEPS, log_every=STEPS,
            checkpoint_every=2 * STEPS, evaluate_every=2 * STEPS, ramp_steps=2 * STEPS,
            anomalies=Anomalies(spikes="skip"),
        )  # fmt: skip
        self.device, self.rank, self.world_size = torch.device("cpu"), dist.get_rank(), dist.get_world_size()
        self.progress, self.evaluated, self.metrics = None, TrainingRecord(), None
        self.guard = Guard(self.spec)
        self.guard.limit = 1e9
        self.look_every, self.watchdog = 2 * STEPS, Watchdog(StagePaths(Path(sys.argv[1]).parent).stack_file(1, 0), 600)
        self.waits = Waits()
        self.lines: list[Any] = []
        self.engine = build_engine(build_model(config, seed=0), self.spec, precision)
        start_moments(self.engine, {})

    def log(self, *_: Any) -> None:
        """Stands in for a log line."""
        self.guard.pending.clear()
        self.lines.append(dict(self.waits.places))
        self.waits.places.clear()

    def watch(self) -> dict[str, int]:
        """The counts between the first log line and the second: before, ZeRO-3 finds the order of parameters."""
        ids = torch.zeros(1, self.spec.sequence_length, dtype=torch.int64)
        with self.waits:
            self.train(self.engine, 0, repeat((ids, ids)))
        _, between = self.lines
        return between


ASKED_BY_DEEPSPEED = dict(zip(KINDS, (2, 3, 4, 3, 1, 1), strict=True))
"""Reads per update, for any number of micro-batches: whether the gradient is finite, whether to clip it, and some per
parameter group. The only setting that avoids them accepts infinite gradients."""


@pytest.mark.trains
def test_between_log_lines_only_deepspeeds_update_waits_for_the_device(tmp_path):
    launch(Path(__file__), 1, str(tmp_path / "waits.json"))
    asked = json.loads((tmp_path / "waits.json").read_text())
    assert asked == {f"{kind}": {"deepspeed": STEPS * times} for kind, times in ASKED_BY_DEEPSPEED.items()}


if __name__ == "__main__":
    start_distributed()
    report = {f"{kind}": Watched(*kind).watch() for kind in KINDS}
    Path(sys.argv[1]).write_text(json.dumps(report))
    os._exit(0)  # as a worker does: native threads may abort the interpreter's shutdown
