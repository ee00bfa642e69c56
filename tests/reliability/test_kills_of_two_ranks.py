"""A run of two ranks resumes to the same bits after kills of one rank, of both, or of the runner."""

import os
import signal

import pytest

from tests.reliability.harness import KilledRun, check_same_end
from tests.reliability.points import BY_NAME

pytestmark = pytest.mark.trains

KILLS = [
    BY_NAME["checkpoint: before its rename"].fault("rename", "runner", "small", nth=2),
    BY_NAME["evaluation: within it"].fault("evaluation", "all ranks", "middle", nth=3),
    BY_NAME["step: before it"].fault("step", "one rank", "large", nth=5, rank=1),
    BY_NAME["final: a slow rename"].fault("renamed", "everybody", "large"),
]


def test_a_run_on_two_ranks_that_is_killed_four_times_ends_in_the_same_bits(tmp_path):
    undisturbed = KilledRun(tmp_path / "undisturbed", ranks=2)
    undisturbed.to_the_end()
    killed = KilledRun(tmp_path / "killed", ranks=2, dataset_of=undisturbed)
    killed.forks = False  # once, all are interpreters as in use
    assert killed.live(KILLS[:1]).exit_code == -signal.SIGKILL
    killed.forks = not os.environ.get("GROWCTL_SOAK")
    killed.to_the_end(KILLS)
    assert set(killed.struck()) == {fault["name"] for fault in KILLS}
    check_same_end(killed, undisturbed)
