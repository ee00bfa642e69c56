"""Fixtures and settings that tests of every floor share."""

import gc
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import warm_start
from tests.workers import TrainingGuard

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Before anything imports torch. pytest has a process per core: a second thread for models this small only waits."""

IN_MEMORY = Path("/dev/shm")
if IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
"""The tests' temporary folders, where there is room. growctl waits for the disk whenever it must not lose anything."""

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
    *("reliability/test_kills_of_two_ranks", "growctl/run/test_shared_training", "growctl/run/test_resume"),
    *("reliability/test_kills_of_one_rank", "growctl/run/test_slurm_job", "reliability/test_world_changes"),
    *("growctl/run/test_growth_runs", "reliability/test_numbers", "growctl/runs/test_real_runs"),
    *("growctl/launch/test_hostfile", "growctl/run/test_run", "stages/engine/test_memory"),
    *("stages/engine/test_engine_state", "growctl/run/test_start_runs", "growctl/run/test_requests"),
    *("reliability/test_corruption", "benchmarks/test_gpu", "stages/train/test_rejection", "reliability/test_disk"),
)
"""Files with real trainings. Tests run in a few processes, a file at a time: long ones at the end would run alone."""


@pytest.fixture(scope="session")
def training() -> None:
    """Fixtures that start training processes request this one: every test that uses them is marked `trains`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests whose fixtures train, before `-m` selects, and puts the files that take longest first."""
    for item in items:
        if "training" in getattr(item, "fixturenames", ()):
            item.add_marker("trains")
    tests = Path(__file__).parent
    places = {tests / f"{name}.py": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Pauses the garbage collector while test files are imported: what they make stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure() -> None:
    """Has the guard see every process that a test starts, also those that the tested code starts in this process."""
    TrainingGuard.watch()
    warm_start.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lets helpers start training processes for tests that are marked `trains`, and for no others."""
    TrainingGuard.may_train = item.get_closest_marker("trains") is not None


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; the test skips where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"no reference data at {SHARED}")
    return SHARED
