"""The benchmarks of growth in depth and of the judge find what must hold."""

import numpy as np
import pytest
import torch

from benchmarks import depth_residual
from benchmarks.judge_coverage import BUDGETS, LAWS, NOISES, coverage_row, false_verdicts


@pytest.mark.slow
def test_new_layers_leave_the_loss_and_the_stream_until_the_first_step(monkeypatch) -> None:
    monkeypatch.setattr(depth_residual, "BASE_STEPS", 2)
    text = torch.randint(256, (2000,), generator=torch.Generator().manual_seed(0))
    found = depth_residual.growth(text, 1, 2, steps=[1])["by_way_and_step"]
    start = found["not grown"][0]
    for name in ("append", "interleave", "append, random", "append, new layers warm up"):
        assert found[name][0]["loss"] == start["loss"]
        assert found[name][0]["rms"] == [*start["rms"], start["rms"][-1]]
        assert found[name][1] != found[name][0]
    assert found["copy-stack"][0]["rms"][-1] > start["rms"][-1]
    assert len(found["scratch"][1]["rms"]) == 3


@pytest.mark.parametrize("noise", NOISES)
def test_the_judges_intervals_hold_the_truth(noise) -> None:
    law = {"exponent 0.9": LAWS["exponent 0.9"]}
    found = coverage_row(np.random.default_rng(0), 60, 3, noise, law, BUDGETS[:1])
    assert found["cells"] == 16
    assert found["mean_coverage"] > 0.9
    assert 0.9 < found["bias"] < 1.1


def test_false_verdicts_are_rare() -> None:
    rates = false_verdicts(np.random.default_rng(0), 200, 3, "equal", 3, 10)
    assert max(rates["false_won"], rates["false_lost"]) < 0.05
