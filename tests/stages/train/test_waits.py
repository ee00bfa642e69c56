"""Between log lines, the training loop never waits for the device."""

import json
from pathlib import Path

import pytest

from tests.stages.train.waits_worker import STEPS
from tests.workers import launch

pytestmark = pytest.mark.trains

ASKED_BY_DEEPSPEED = {
    "zero1-bf16": 2,  # whether the gradient norm is finite, and whether to clip by it
    "zero1-fp32": 1 + 2,  # the first of these, and one read per parameter group
    "zero2-bf16": 2 + 2,  # also whether a gradient is infinite
    "zero2-fp32": 1 + 2,
    "zero3-bf16": 1,
    "zero3-fp32": 1,
}
"""Reads per update, for any number of micro-batches. The only setting that avoids them accepts infinite gradients."""


def test_between_log_lines_only_deepspeeds_update_waits_for_the_device(tmp_path):
    launch(Path(__file__).parent / "waits_worker.py", 1, str(tmp_path / "waits.json"))
    asked = json.loads((tmp_path / "waits.json").read_text())
    assert asked == {kind: {"deepspeed": STEPS * times} for kind, times in ASKED_BY_DEEPSPEED.items()}
