"""Which steps are timed, and which memory figures are read.

tests/growctl/ladder/test_measure.py tests the same with real engines.
"""

from types import SimpleNamespace

import pytest
import torch

from stages.probe import time_steps
from stages.probe.records import StepMemory
from stages.probe.time_steps import TIMED_STEPS, WARM_UP_STEPS, step_memory
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec


class Engine:
    """A fake engine with its own clock: a micro-batch takes 1 s, an update 10 s, and a first step 100 s more each."""

    def __init__(self, num_micro_batches: int, pace: float = 1.0) -> None:
        self.num_micro_batches, self.pace = num_micro_batches, pace
        self.now, self.micro_batches = 0.0, 0
        self.shapes: set[tuple[int, ...]] = set()

    def __call__(self, input_ids: torch.Tensor, targets: torch.Tensor) -> str:
        assert torch.equal(input_ids[:, 1:], targets[:, :-1])
        self.shapes.add(tuple(input_ids.shape))
        return "loss"

    def backward(self, loss: str) -> None:
        self.now += self.pace

    def step(self) -> None:
        self.micro_batches += 1
        steps, rest = divmod(self.micro_batches, self.num_micro_batches)
        self.now += 10 * self.pace if rest == 0 else 0
        self.now += 100 * self.pace if steps + (rest > 0) <= WARM_UP_STEPS - 1 else 0


@pytest.mark.parametrize("num_micro_batches", [1, 2])
def test_medians_are_taken_over_the_steps_after_the_warm_up(monkeypatch, num_micro_batches: int) -> None:
    engine = Engine(num_micro_batches)
    fake = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(time_steps, "dist", fake)
    monkeypatch.setattr(time_steps, "build_engine", lambda *a: engine)
    monkeypatch.setattr(time_steps, "start_moments", lambda engine, steps: None)
    monkeypatch.setattr(time_steps.time, "perf_counter", lambda: engine.now)
    spec = small_spec(small_config(), micro_batch_size=3, batch_size=3 * num_micro_batches, sequence_length=10)
    found = time_steps.measure(spec, torch.device("cpu"))
    assert found.last_micro_batch_seconds == 11
    assert found.micro_batch_seconds == (1 if num_micro_batches == 2 else 11)
    assert found.num_steps == TIMED_STEPS
    assert engine.micro_batches == num_micro_batches * (WARM_UP_STEPS + TIMED_STEPS)
    assert engine.shapes == {(3, 10)}
    assert found.memory is None


def test_memory_is_measured_around_the_last_forward_pass(monkeypatch) -> None:
    allocated = iter([100, 130, 300, 360])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    found = step_memory(Engine(2), (torch.zeros(1, 3), torch.zeros(1, 3)), 2)
    assert found == StepMemory(lasting_bytes=300, activation_bytes=60, peak_bytes=500)
