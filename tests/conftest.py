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
    *("growctl/run/test_resume", "reliability/test_kills_of_one_rank", "reliability/test_kills_of_two_ranks"),
    *("growctl/run/test_growth_runs", "reliability/test_numbers", "growctl/status/test_status"),
    *("growctl/queue/test_slurm_job", "reliability/test_world_changes", "benchmarks/test_gpu"),
    *("reliability/test_corruption", "stages/engine/test_device_memory", "growctl/run/test_run"),
    *("stages/engine/test_engine_state", "stages/train/test_refusal", "growctl/launch/test_hostfile"),
    "reliability/test_disk",
)
"""Files with real trainings. Tests run in two processes, a file at a time: long ones at the end would run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first."""
    tests = Path(__file__).parent
    places = {tests / f"{name}.py": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; the test skips where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference data at {SHARED}")
    return SHARED
