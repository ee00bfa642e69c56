"""Between log lines the loop asks no tensor for its value: a GPU would have to be waited for."""

import json
from pathlib import Path

import pytest

from tests.stages.train.waits_worker import STEPS
from tests.workers import launch

pytestmark = pytest.mark.trains

ASKED_BY_DEEPSPEED = {
    "zero1-bf16": 2,  # whether the gradients' norm is a number, and whether to clip by it
    "zero1-fp32": 1 + 2,  # the first, and once more for each parameter group
    "zero2-bf16": 2 + 2,  # and whether a gradient is infinite
    "zero2-fp32": 1 + 2,
    "zero3-bf16": 1,
    "zero3-fp32": 1,
}
"""Times in an update, whatever the number of micro-batches. No setting spares them but one that takes steps with
infinite gradients."""


def test_between_log_lines_only_deepspeed_asks_for_values_and_only_in_the_update(tmp_path):
    launch(Path(__file__).parent / "waits_worker.py", 1, str(tmp_path / "waits.json"))
    asked = json.loads((tmp_path / "waits.json").read_text())
    assert asked == {kind: {"deepspeed": STEPS * times} for kind, times in ASKED_BY_DEEPSPEED.items()}
