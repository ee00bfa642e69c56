"""A non-finite gradient on any rank changes no weight, moment or step on any rank of any engine.

For each ZeRO stage, precision and offloading, one engine makes two good updates without an active guard. Another makes
the same two with an active guard, and between them gets updates that it must reject: a NaN loss and one infinite
gradient, both in a step's first micro-batch on the last rank only, and a spike on all ranks.
"""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from model.config_growth import ramp_config
from model.initialization import build_model
from model.parameter_names import OptimizerName
from stages.engine.deepspeed_api import DeepSpeedEngine
from stages.engine.engine import build_engine
from stages.engine.engine_state import drop_rejected_gradient, engine_states, group_steps, start_moments
from stages.engine.rank_process import start_distributed
from stages.spec import Anomalies
from stages.train.anomaly_guard import Guard
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec
from tests.workers import launch

Kind = tuple[str, int, str, str, OptimizerName]
KINDS: list[Kind] = [
    (f"zero{stage}-{precision}{'-offloaded' if offload == 'optimizer' else ''}", stage, precision, offload, "adamw")
    for stage in (1, 2, 3)
    for precision, offload in (("fp32", "none"), ("bf16", "none"), ("bf16", "optimizer"))
]
KINDS += [
    (f"zero{stage}-{precision}-muon", stage, precision, "none", "muon")
    for stage, precision in ((1, "fp32"), (1, "bf16"), (3, "fp32"))
]
POISONS = {"nan loss": "non_finite", "infinite gradient": "non_finite", "spike": "spike"}
CONFIG = ramp_config(small_config(width=9, ffn_tokens=7), 0.5)
SEQUENCES, LENGTH = 4, 10


class Trained:
    """An engine with its guard, stepped one update at a time."""

    def __init__(
        self, zero_stage: int, precision: Any, offload: str, optimizer: OptimizerName, *, limit: float | None
    ) -> None:
        spec = small_spec(
            CONFIG, zero_stage=zero_stage, precision=precision, offload=offload, anomalies=Anomalies(spikes="skip")
        )
        if optimizer == "muon":
            settings = spec.optimizer.model_copy(update={"name": "muon", "gradient_clipping": 0.0})
            spec = spec.model_copy(update={"optimizer": settings})
        self.engine: DeepSpeedEngine = build_engine(build_model(CONFIG, seed=0), spec, precision)
        start_moments(self.engine, {})
        self.guard = Guard(spec)
        self.limit = limit

    def step(self, number: int, poison: str | None = None) -> Tensor:
        """One optimizer step as Worker.train_step makes it; this rank's mean loss."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        self.guard.limit = -1.0 if poison == "spike" else self.limit
        tokens = torch.randint(31, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(number))
        loss = torch.zeros((), dtype=torch.float64)
        here = rank == world_size - 1
        for i in range(rank, SEQUENCES, world_size):
            ids = tokens[i : i + 1]
            first, last = i == rank, i + world_size >= SEQUENCES
            hook = None
            if here and first and poison == "infinite gradient":
                hook = self.engine.module.embedding.register_forward_hook(_infinite)
            micro_loss = self.engine(ids, ids.roll(-1, 1))
            if hook:
                hook.remove()
            if here and first and poison == "nan loss":
                micro_loss = micro_loss * math.nan
            loss += micro_loss.detach() * world_size / SEQUENCES
            self.engine.backward(self.guard.judged(micro_loss, loss) if last else micro_loss)
            self.engine.step()
        return loss

    def state(self) -> tuple[list[Tensor], dict[str, int]]:
        """Master weights and moments, what the model computes, and Adam's steps: copies."""
        tensors = [tensor.clone() for _, state in engine_states(self.engine) for tensor in state]
        ids = torch.arange(LENGTH).unsqueeze(0)
        self.engine.eval()
        with torch.no_grad():
            tensors.append(self.engine(ids, ids))
        self.engine.train()
        return tensors, group_steps(self.engine)


def _infinite(_module: object, _inputs: object, output: Tensor) -> None:
    output.register_hook(lambda gradient: gradient * math.inf)


def watch(*kind: Any) -> dict[str, object]:
    """Whether the checks pass with engines of this kind."""
    undisturbed = Trained(*kind, limit=None)
    losses = [undisturbed.step(number).item() for number in (0, 1)]
    disturbed = Trained(*kind, limit=1e9)
    found: dict[str, object] = {"first loss": disturbed.step(0).item() == losses[0]}
    found["good update made"] = disturbed.engine.was_step_applied()
    before, steps = disturbed.state()
    found["finite"] = all(bool(tensor.isfinite().all()) for tensor in before)
    for poison in POISONS:
        loss = disturbed.step(7, poison)
        drop_rejected_gradient(disturbed.engine)
        anomaly = disturbed.guard.verdict(1, loss)
        now, steps_now = disturbed.state()
        untouched = steps_now == steps and all(map(torch.equal, now, before))
        found[poison] = [not disturbed.engine.was_step_applied(), untouched, anomaly["kind"], anomaly["value"] is None]
    found["second loss"] = disturbed.step(1).item() == losses[1]
    after, steps = disturbed.state()
    expected, undisturbed_steps = undisturbed.state()
    found["same end"] = steps == undisturbed_steps and all(map(torch.equal, after, expected))
    found["another end"] = not all(map(torch.equal, after, before))
    return found | {"steps": sorted(set(steps.values()))}


@pytest.fixture(scope="module")
def report(training, tmp_path_factory):
    """What the last of two ranks saw: {kind: {check: outcome}}."""
    path = tmp_path_factory.mktemp("rejection") / "report.json"
    launch(Path(__file__), 2, str(path))
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", [name for name, *_ in KINDS])
def test_a_rejected_update_changes_no_state_and_an_idle_guard_changes_no_bit(report, kind):
    passed = dict.fromkeys(("first loss", "good update made", "finite", "second loss", "same end", "another end"), True)
    rejected = {poison: [True, True, verdict, poison == "nan loss"] for poison, verdict in POISONS.items()}
    assert report[kind] == passed | rejected | {"steps": [2]}


if __name__ == "__main__":
    start_distributed()
    found = {name: watch(*kind) for name, *kind in KINDS}
    if dist.get_rank() == dist.get_world_size() - 1:
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.destroy_process_group()
    os._exit(0)  # as a worker does: native threads may abort the interpreter's shutdown
