"""The benchmark of growth in depth starts every identity growth at the base's loss and residual stream."""

import pytest
import torch

from benchmarks import depth_residual


@pytest.fixture
def found(monkeypatch):
    monkeypatch.setattr(depth_residual, "BASE_STEPS", 2)
    text = torch.randint(256, (2000,), generator=torch.Generator().manual_seed(0))
    return depth_residual.growth(text, 1, 2, steps=[1])["by_way_and_step"]


@pytest.mark.slow
def test_new_layers_leave_the_loss_and_the_stream_until_the_first_step(found):
    start = found["not grown"][0]
    for name in ("append", "interleave", "append, random", "append, new layers warm up"):
        assert found[name][0]["loss"] == start["loss"]
        assert found[name][0]["rms"] == [*start["rms"], start["rms"][-1]]
        assert found[name][1] != found[name][0]
    assert found["copy-stack"][0]["rms"][-1] > start["rms"][-1]
    assert len(found["scratch"][1]["rms"]) == 3
