"""`growctl doctor` on good and bad machines, with simulated conditions."""

import errno
import fcntl
import importlib.metadata
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

from growctl.doctor import machine
from growctl.doctor.check import PACKAGES, carried_out
from stages.probe.records import DeviceFacts, MachineFacts
from tests.growctl.runs import run
from tests.workers import REPOSITORY, TrainingGuard

CPU = DeviceFacts(kind="cpu", name="CPU X", memory_bytes=2**34, free_bytes=None, capability=None, fast_bf16=False)
OF_GPU = {"kind": "cuda", "name": "GPU Y", "memory_bytes": 80 * 2**30, "free_bytes": 79 * 2**30}
GPU = DeviceFacts.model_validate(OF_GPU | {"capability": "9.0", "fast_bf16": True})
BUSY, OTHER = (GPU.model_copy(update=change) for change in ({"free_bytes": 10 * 2**30}, {"name": "GPU Z"}))
FACTS = MachineFacts(cuda="12.8", hip=None, driver=None, problem=None, devices=(CPU,))
Usage = namedtuple("Usage", "total used free")


def facts(**changes):
    return FACTS.model_copy(update=changes)


def assert_says(check: Callable[[], str], level: str, *words: str) -> None:
    """Asserts that `check` ends with `level`, a fix unless that is ok, and `words`."""
    result = carried_out("a check", check)
    text = f"{result.what} | {result.fix}"
    assert (result.level, result.fix is None) == (level, level == "ok"), text
    for word in words:
        assert word in text, text


@pytest.mark.slow
def test_a_good_machine_passes_and_nothing_is_left_behind(tmp_path):
    out, err = run("doctor", "--runs-dir", tmp_path / "new/runs", "--json")
    document = json.loads(out)
    levels = {check["name"]: check["level"] for check in document["checks"]}
    names = ("imports", "torch", "DeepSpeed", "devices", "runs directory")
    assert levels.items() >= dict.fromkeys(names, "ok").items()
    assert (document["ok"], err) == (True, "")
    assert list(tmp_path.iterdir()) == []


def test_every_check_runs_even_if_others_fail(monkeypatch, tmp_path):
    for name in ("packages", "torch_build", "devices", "runs_directory", "shared_memory"):
        monkeypatch.setattr(machine, name, Mock(side_effect=RuntimeError("it fell over")))
    monkeypatch.setattr(machine, "ask_torch", lambda *_: FACTS)
    checks = {check.name: check for check in machine.diagnose(tmp_path, lambda name: None)}
    assert len(checks) == 7
    for name in ("packages", "torch", "devices", "shared memory"):
        assert (checks[name].level, checks[name].what) == ("failed", "RuntimeError: it fell over")


def growctl_beside_strangers(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """What growctl does if Python finds another `model` and `stages` before growctl's."""
    environment = os.environ | {"PYTHONPATH": f"{folder}:{REPOSITORY}", "PYTHONSAFEPATH": "1", "COLUMNS": "300"}
    whole = [sys.executable, "-m", "growctl.cli.app", *command]
    with TrainingGuard.rejection():
        return subprocess.run(whole, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_packages_that_hide_growctls_own_are_named_by_the_doctor_and_give_others_one_line(tmp_path):
    for name in ("model.py", "stages.py"):
        (tmp_path / name).write_text("raise SystemExit('someone else')\n")
    ended = growctl_beside_strangers(tmp_path, "doctor")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert str(tmp_path / "model.py") in ended.stdout
    assert "Fix this first; growctl doctor can then run the other checks." in ended.stdout
    (tmp_path / "model.py").write_text("")
    ended = growctl_beside_strangers(tmp_path, "plan", "quickstart")
    assert (ended.returncode, ended.stdout) == (1, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("growctl: ")
    assert line.endswith("'model' is not a package; growctl doctor shows where it is imported from")


def test_a_clone_in_or_below_the_working_directory_is_no_stranger(tmp_path):
    clone = tmp_path / "growctl"
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, clone / package, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from growctl.doctor.check import check_imports; print(check_imports())"
    for folder, python_path, options, home in [
        (clone, "", ["-P"], REPOSITORY),  # as the console script, which does not import from the working directory
        (tmp_path, str(tmp_path), ["-P"], REPOSITORY),  # the clone's own name looks like the package
        (clone, str(clone), ["-P"], clone),
        (clone, "", [], clone),  # as `python -m`
    ]:
        environment = os.environ | {"PYTHONPATH": python_path}
        command = [sys.executable, *options, "-c", code]
        said = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True).stdout
        assert said == f"growctl, stages, model come from {home}\n"


def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("installed", "level", "words"),
    [
        ({"torch": "2.13.0+cpu"}, "ok", ["2 packages"]),
        ({"torch": "2.12.0.dev20260101"}, "ok", []),
        ({"torch": "2.10.1"}, "failed", ["torch 2.10.1; growctl needs", "pip install 'torch<2.14,>=2.11'"]),
        ({"rich": "13.8"}, "failed", ["torch not installed; rich 13.8", "'torch<2.14,>=2.11' 'rich>=13.9'"]),
    ],
)
def test_every_package_must_be_there_in_its_range(monkeypatch, installed, level, words):
    versions = {"rich": "14"} | installed
    needed = {"torch": Requirement("torch>=2.11,<2.14"), "rich": Requirement("rich>=13.9")}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: versions.get(name) or missing(name))
    monkeypatch.setattr(machine, "requirements", lambda: needed)
    assert_says(machine.packages, level, *words)


@pytest.mark.parametrize(
    ("check", "found", "level", "words"),
    [
        ("torch_build", facts(), "ok", ["built for CUDA 12.8; no NVIDIA driver here"]),
        ("torch_build", facts(driver="12.8", devices=(GPU,)), "ok", ["the driver supports CUDA up to 12.8"]),
        ("torch_build", facts(driver="12.8", cuda=None), "warning", ["install a build for CUDA"]),
        ("torch_build", facts(driver="12.4"), "warning", ["update the NVIDIA driver", "built for CUDA 12.4"]),
        ("torch_build", facts(driver="13.0"), "warning", ["CUDA_VISIBLE_DEVICES"]),
        ("torch_build", "libtorch.so is missing", "failed", ["cannot be used: libtorch.so is missing"]),
        ("deepspeed_import", facts(problem="ImportError: no libaio", devices=()), "failed", ["no libaio"]),
        ("devices", facts(devices=(GPU, GPU)), "ok", ["2 x GPU Y, 80 GiB, compute capability 9.0, bf16 is"]),
        ("devices", facts(devices=(GPU, BUSY)), "warning", ["GPU 1 has 10 GiB free", "nvidia-smi"]),
        ("devices", facts(devices=(GPU, OTHER)), "warning", ["1 x GPU Y", "1 x GPU Z", "slowest"]),
    ],
)
def test_torch_its_driver_and_devices_must_fit_together(check, found, level, words):
    assert_says(lambda: getattr(machine, check)(found), level, *words)


def refuses(number: int):
    return Mock(side_effect=OSError(number, os.strerror(number)))


def test_a_runs_directory_is_tested_but_not_created(tmp_path):
    words = "renaming folders, locks, SQLite and hard links work"
    assert_says(lambda: machine.runs_directory(tmp_path), "ok", str(tmp_path), words)
    assert_says(lambda: machine.runs_directory(tmp_path / "new/runs"), "ok", f"the first run creates in {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_runs_directory_that_cannot_be_written_fails():
    place = "/proc/self/status/runs"
    assert_says(lambda: machine.runs_directory(Path(place)), "failed", f"{place} cannot hold runs", "--runs-dir")


@pytest.mark.parametrize(
    ("module", "name", "broken", "level", "words"),
    [
        (fcntl, "flock", lambda *arguments: None, "failed", ["two processes could hold the same lock", "-o flock"]),
        (fcntl, "flock", refuses(errno.ENOLCK), "failed", ["No locks available"]),
        (os, "rename", refuses(errno.EPERM), "failed", ["Operation not permitted"]),
        (sqlite3, "connect", Mock(side_effect=sqlite3.OperationalError("disk I/O")), "failed", ["disk I/O"]),
        (os, "link", refuses(errno.EPERM), "warning", ["a growth copies old files"]),
        (machine, "write_file", refuses(errno.ENOSPC), "failed", ["No space left on device", "free some space"]),
    ],
)
def test_a_missing_file_system_feature_fails_the_check(tmp_path, monkeypatch, module, name, broken, level, words):
    monkeypatch.setattr(module, name, broken)
    assert_says(lambda: machine.runs_directory(tmp_path), level, *words)


@pytest.mark.parametrize(
    ("num_gpus", "free", "level", "words"),
    [
        (None, 5 * 10**9, "ok", ["5 GB free"]),
        (None, 50 * 10**6, "warning", ["50 MB free"]),
        (None, 50 * 10**6 - 1, "failed", ["50 MB free"]),
        (0, 2**26, "ok", ["0.0625 GiB of 1 GiB free"]),
        (2, 2**26, "warning", ["0.25 GiB for 2 ranks", "--ipc=host", "--shm-size=1g"]),
        (8, 2**30, "ok", []),
    ],
)
def test_a_disk_needs_space_and_shared_memory_for_several_gpus(tmp_path, monkeypatch, num_gpus, free, level, words):
    """`num_gpus`: of the shared memory, None for the disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**30, 0, free))
    if num_gpus is None:
        assert_says(lambda: machine.disk_space(tmp_path), level, *words)
    else:
        assert_says(lambda: machine.shared_memory(facts(devices=(GPU,) * num_gpus), tmp_path), level, *words)
