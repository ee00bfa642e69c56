"""The test suite itself: no test depends on the machine's speed, and the fast part trains nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from growctl.launch.local import local_launch
from tests.growctl.runs import finish, stat_of
from tests.workers import launch


def test_no_property_test_has_a_deadline_or_fails_because_the_machine_is_slow(request: pytest.FixtureRequest) -> None:
    assert settings.get_current_profile_name() == "any-machine"
    for item in request.session.items:
        function = getattr(item, "obj", None)
        if is_hypothesis_test(function):
            in_effect = function._hypothesis_internal_use_settings
            assert in_effect.deadline is None, item.nodeid
            assert HealthCheck.too_slow in in_effect.suppress_health_check, item.nodeid


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "growctl.cli.app", "run", "no-such-schedule"],
        [sys.executable, "-m", "growctl.cli.app", "plan", "no-such-schedule", "--measure"],
        ["/somewhere/bin/growctl", "run", "no-such-schedule"],
        local_launch(Path("spec.json"), 2, gpus=False).command,
        local_launch(Path("spec.json"), 1, gpus=False, module="stages.probe.time_steps").command,
    ],
    ids=["run", "plan --measure", "console script", "workers", "ranks of a probe"],
)
def test_a_test_without_the_mark_starts_no_training(command: list[str]) -> None:
    """`make test-fast` must stay fast; conftest.py marks the users of fixtures that train."""
    with pytest.raises(AssertionError, match=r"mark it @pytest\.mark\.trains"):
        subprocess.Popen(command)


def test_a_helper_that_starts_ranks_of_a_script_needs_the_mark_too(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"mark it @pytest\.mark\.trains"):
        launch(tmp_path / "never_started.py", 1)


def test_a_process_that_has_ended_counts_as_gone_before_its_parent_asks() -> None:
    """Else a helper that waits for a paused worker would wait for a dead one until it gives up."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert stat_of(child.pid) == []
    child.wait()


def test_a_growctl_that_reports_a_bug_in_itself_fails_the_test() -> None:
    script = "echo 'growctl: this is a bug in growctl: KeyError: 1' >&2; exit 1"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(AssertionError, match="KeyError: 1"):
        finish(process, expect=1)
