"""What tests of every floor share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"

settings.register_profile(
    "any-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=not os.environ.get("GROWCTL_SOAK"),
)
settings.load_profile("any-machine")
"""No property test depends on how busy the machine is. Except in a soak, each tries the same examples every time."""

LONGEST_FIRST = (
    *("test_resume", "test_kills_of_one_rank", "test_kills_of_two_ranks", "test_growth_runs", "test_numbers"),
    *("test_status", "test_slurm", "test_world_changes", "test_gpu", "test_corruption", "test_memory", "test_run"),
    *("test_engine_state", "test_refusal", "test_hostfile", "test_disk"),
)
"""Files with real trainings. Tests run in two processes, a file at a time: long ones at the end would run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; the test skips where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference data at {SHARED}")
    return SHARED
