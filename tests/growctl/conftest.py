"""Fixtures for cluster tests: an undisturbed reference run, and programs that stand in for a cluster."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.growctl import fakes
from tests.growctl.fakes.slurm import PROGRAMS
from tests.growctl.runs import SCHEDULE, made_once, run, wait_for, write_schedule

FAKES = Path(fakes.__file__).parent


@pytest.fixture(scope="session")
def two_ranks(training: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(schedule, runs directory) of a ladder trained on this machine, by two ranks, without being stopped.

    Each stage has a learning rate of its own, so that a ladder of only the first stage trains it identically.
    """

    def make(folder: Path) -> None:
        schedule = write_schedule(folder, SCHEDULE.replace("decay: 0.2", "decay: 0.2, span: stage"))
        run("run", schedule, "launch.devices=2", "--runs-dir", folder / "runs")

    folder = made_once(tmp_path_factory, "two_ranks", make)
    return folder / "tiny.yaml", folder / "runs"


@pytest.fixture
def runs_dir(two_ranks: tuple[Path, Path], tmp_path: Path) -> Path:
    """A runs directory of its own that has the dataset already."""
    shutil.copytree(two_ranks[1] / ".datasets", tmp_path / "runs/.datasets")
    return tmp_path / "runs"


def put_on_path(folder: Path, programs: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes programs in `folder`, {name: command}, and puts them before all others."""
    folder.mkdir()
    for name, command in programs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture
def pdsh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pdsh and ssh, for which every host is this machine."""
    commands = {"pdsh": [sys.executable, str(FAKES / "pdsh.py")], "ssh": ["true"]}
    put_on_path(tmp_path / "bin", commands, monkeypatch)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A SLURM of this machine; the folder that it keeps its jobs in. No job outlives the test."""
    home = tmp_path / "slurm"
    home.mkdir()
    monkeypatch.setenv("FAKE_SLURM", str(home))
    commands = {name: [sys.executable, str(FAKES / "slurm.py"), name] for name in PROGRAMS}
    put_on_path(tmp_path / "bin", commands, monkeypatch)
    yield home
    jobs = sorted(path.name for path in home.iterdir() if path.name[0].isdigit())
    subprocess.run(["scancel", *jobs], check=True)
    wait_for(lambda: not any((home / job / "follower").exists() for job in jobs))
