"""A tracker without its package: one message, exit code 2, and nothing trained or written."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from growctl.trackers import adapters
from tests.growctl.runs import UNUSABLE_INPUT, run_here, write_schedule

MESSAGE = "trackers.0 = 'wandb': needs the package wandb; pip install 'growctl[wandb]'"


@pytest.fixture
def without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb is not installed; the other packages are."""
    monkeypatch.setattr(adapters, "find_spec", lambda name: None if name == "wandb" else ModuleSpec(name, None))


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_run_without_a_trackers_package_ends_before_training(without_wandb, tmp_path: Path, more: list[str]) -> None:
    arguments = (write_schedule(tmp_path), "trackers=[wandb]", "--runs-dir", tmp_path / "runs", *more)
    out, err = run_here("run", *arguments, expect=UNUSABLE_INPUT)
    assert (out, err) == ("", f"growctl: {MESSAGE}\n")
    assert not (tmp_path / "runs").exists()


def test_validate_finds_the_missing_package_as_run_does(without_wandb, tmp_path: Path) -> None:
    schedule = write_schedule(tmp_path)
    _, err = run_here("validate", schedule, "trackers=[wandb]", expect=UNUSABLE_INPUT)
    assert err == f"{schedule}: {MESSAGE}\n"


def test_the_second_trackers_package_is_named_too(without_wandb) -> None:
    assert adapters.missing_package(["tensorboard", "wandb"]) == MESSAGE.replace("trackers.0", "trackers.1")
    assert adapters.missing_package(["tensorboard", "mlflow", "trackio"]) is None


def test_every_tracker_has_an_extra_of_its_name_with_its_packages() -> None:
    import tomllib
    from typing import get_args

    from growctl.schedule.blocks import TrackerName
    from tests.workers import REPOSITORY

    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert tuple(adapters.PACKAGES) == tuple(adapters.ADAPTERS) == get_args(TrackerName)
    for name, packages in adapters.PACKAGES.items():
        needed = " ".join(extras[name])
        assert all(package in needed for package in packages), name
