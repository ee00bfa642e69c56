"""Detection of loss spikes, and the response to a rejected update.

test_rejection.py tests that a rejected update leaves no trace.
"""

import math
import statistics
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from stages.checkpoint.lineage import TrainingRecord
from stages.spec import Anomalies, GenerationRule
from stages.train.anomaly_guard import Guard, spike_limit
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec

losses = st.lists(st.floats(0.0, 20.0), min_size=8, max_size=40)
WINDOW = 8
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """A process group of one rank."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def guard(**changes: Any) -> Guard:
    """A guard whose policy and stage have these settings."""
    policy: dict[str, Any] = {"spikes": "skip", "window": WINDOW, "most": 3}
    policy |= {key: changes.pop(key) for key in list(changes) if key in Anomalies.model_fields}
    settings: dict[str, Any] = {"num_steps": 100, "checkpoint_every": 10, "anomalies": Anomalies(**policy)} | changes
    return Guard(small_spec(small_config(), **settings))


def resume(saved: Guard, resumed: Guard) -> None:
    """Restores what a checkpoint stores of `saved` into `resumed`."""
    record = TrainingRecord(guard=saved.state(), pending=saved.pending_of_ranks())
    resumed.restore(TrainingRecord.model_validate_json(record.model_dump_json()), CPU)


def bad(judge: Guard, step: int, loss: float):
    return judge.verdict(step, torch.tensor(loss, dtype=torch.float64))


@given(losses, st.floats(0.1, 50.0))
def test_the_limit_is_the_median_and_z_robust_deviations(past, z):
    middle = statistics.median(past)
    mad = statistics.median(abs(loss - middle) for loss in past)
    assert spike_limit(past, z) == pytest.approx(middle + z * max(1.4826 * mad, 0.01))
    assert spike_limit([2.0] * 64, 10.0) == pytest.approx(2.1), "a ripple in a flat loss is no spike"


@given(st.lists(st.lists(st.floats(0.0, 20.0), max_size=6), min_size=1, max_size=12), st.data())
def test_a_restored_guard_decides_like_an_uninterrupted_one(lines, data):
    whole, restored = guard(), guard()
    cut = data.draw(st.integers(0, len(lines)))
    for number, line in enumerate(lines, 1):
        whole.learn(10 * number, line)
        restored.learn(10 * number, line)
        if number == cut:
            saved = restored
            restored = guard()
            resume(saved, restored)
        assert restored.limit == whole.limit
    known = [loss for line in lines for loss in line]
    assert whole.limit == (spike_limit(known[-WINDOW:], 10.0) if len(known) >= WINDOW else None)


def test_a_checkpoint_carries_the_losses_since_the_last_log_line_and_a_new_number_of_ranks_gets_their_mean():
    judge, resumed = guard(), guard()
    for loss in (3.0, 2.0):
        judge.passed(torch.tensor(loss, dtype=torch.float64))
    resume(judge, resumed)
    assert [loss.item() for loss in resumed.pending] == [3.0, 2.0]
    resumed.restore(TrainingRecord(pending=[[3.0, 2.0], [4.0, 5.0]]), CPU)
    assert [loss.item() for loss in resumed.pending] == [3.5, 3.5]
    resumed.learn(10, [3.5, 3.5])
    assert resumed.pending_of_ranks() == [[]]
    judge.restore(TrainingRecord(), CPU)
    assert judge.limit is None, "a checkpoint without guard state"


REST = (GenerationRule(frozen_steps=100), GenerationRule(frozen_steps=20, warmup_steps=7))


@pytest.mark.parametrize(
    ("settings", "settled"), [({"ramp_steps": 23}, 23), ({"anneal_steps": 25}, 25), ({"generations": REST}, 27)]
)
def test_no_step_is_a_spike_until_the_stage_has_settled_and_the_window_is_full(settings, settled):
    judge = guard(**settings)
    judge.learn(20, [9.0] * 10)
    judge.learn(30, [9.0] * (settled - 20) + [2.0] * (30 - settled))
    assert judge.limit is None
    judge.learn(40, [2.0] * (WINDOW - (30 - settled)))
    assert judge.limit == pytest.approx(2.1)


def test_ignoring_spikes_stores_no_losses():
    judge = guard(spikes="ignore")
    judge.learn(90, [2.0] * 80)
    assert judge.limit is None
    assert judge.state() == {"refused": 0, "losses": []}
    loss = torch.tensor(1.0)
    assert judge.judged(loss, loss) is loss


@pytest.mark.parametrize(("mean", "is_spike"), [(2.09, False), (2.11, True), (math.inf, True), (math.nan, False)])
def test_only_a_loss_above_the_limit_makes_the_gradient_non_finite(mean, is_spike):
    judge = guard()
    judge.learn(20, [2.0] * WINDOW)
    weight = torch.tensor(0.3, requires_grad=True)
    loss = weight * 1.7
    judged = judge.judged(loss, torch.tensor(mean, dtype=torch.float64))
    judged.backward()
    assert bool(weight.grad.isnan()) == is_spike
    if not is_spike:
        assert torch.equal(judged, loss)
        assert weight.grad.item() == torch.tensor(1.7).item()


def test_a_verdict_distinguishes_spikes_from_non_finite_gradients():
    judge = guard(non_finite="skip", spikes="rollback")
    of = {"kind": "non_finite", "value": 7.0, "threshold": None, "action": "skip", "first_step": 4, "num_steps": 1}
    assert bad(judge, 5, 7.0) == of
    assert bad(judge, 6, math.nan)["value"] is None
    judge.learn(20, [2.0] * WINDOW)
    of = {"kind": "spike", "value": 7.0, "action": "rollback", "first_step": 20, "num_steps": 7}
    assert (spike := bad(judge, 27, 7.0)) == of | {"threshold": pytest.approx(2.1)}
    assert "7.0000, is a spike: above 2.1000" in judge.reason(27, spike)
    assert bad(judge, 28, math.inf)["kind"] == "non_finite"


def test_a_rollback_skips_all_data_since_the_checkpoint_including_data_skipped_before():
    """Data was read 3 steps ahead from step 20 on, and another 4 ahead from step 25 on (a deleted checkpoint)."""
    judge = guard(non_finite="rollback", left_out=((20, 3), (25, 4)))
    anomaly = bad(judge, 28, math.nan)
    assert (anomaly["first_step"], anomaly["num_steps"]) == (20, 8 + 4)
    assert bad(judge, 21, math.nan)["num_steps"] == 1


def test_too_many_rejected_updates_in_a_row_stop_the_stage_even_across_a_resume():
    judge = guard(non_finite="skip")
    assert [bad(judge, step, math.nan)["action"] for step in (1, 2)] == ["skip"] * 2
    judge.passed(torch.tensor(2.0, dtype=torch.float64))
    assert [bad(judge, step, math.nan)["action"] for step in (4, 5)] == ["skip"] * 2
    resumed = guard(non_finite="skip")
    resume(judge, resumed)
    assert [(last := bad(resumed, step, math.nan))["action"] for step in (6, 7)] == ["skip", "stop"]
    assert "rejected update number 4 in a row (anomalies.most: 3); try a lower" in resumed.reason(7, last)
