"""The test suite itself: no test depends on the machine's speed, and the fast part trains nothing."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.conftest import TRAINING_FIXTURES
from tests.growctl.runs import finish
from tests.reliability.harness import KilledRun
from tests.workers import TrainingGuard, launch


def test_no_property_test_has_a_deadline_or_fails_because_the_machine_is_slow(request: pytest.FixtureRequest) -> None:
    assert settings.get_current_profile_name() == "any-machine"
    for item in request.session.items:
        function = getattr(item, "obj", None)
        if is_hypothesis_test(function):
            in_effect = function._hypothesis_internal_use_settings
            assert in_effect.deadline is None, item.nodeid
            assert HealthCheck.too_slow in in_effect.suppress_health_check, item.nodeid


def test_a_test_without_the_mark_starts_no_training(tmp_path: Path) -> None:
    """`make test-fast` must stay fast; conftest.py marks the users of fixtures that train."""
    with pytest.raises(AssertionError, match=r"mark it @pytest\.mark\.trains"):
        launch(tmp_path / "never_started.py", 1)
    with pytest.raises(AssertionError, match=r"mark it @pytest\.mark\.trains"):
        KilledRun(tmp_path / "run", ranks=1).start()
    with pytest.raises(AssertionError, match=r"mark it @pytest\.mark\.trains"):
        finish(subprocess.Popen(["sh", "-c", "", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))


@pytest.mark.trains
def test_a_test_with_the_mark_may_start_training() -> None:
    TrainingGuard.check()


def test_every_user_of_a_fixture_that_trains_is_marked(request: pytest.FixtureRequest) -> None:
    users = [item for item in request.session.items if TRAINING_FIXTURES & set(getattr(item, "fixturenames", ()))]
    assert [item.nodeid for item in users if item.get_closest_marker("trains") is None] == []
