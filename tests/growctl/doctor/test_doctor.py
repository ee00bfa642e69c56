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
from functools import partial
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from growctl.doctor import machine
from growctl.doctor.check import PACKAGES, Check, DoctorDocument, carried_out, check_imports, doctor_section
from stages.probe.records import DeviceFacts, MachineFacts
from tests.growctl.report.rendered import lines_of
from tests.growctl.runs import run
from tests.workers import REPOSITORY, TrainingGuard

CPU = DeviceFacts(kind="cpu", name="CPU X", memory_bytes=2**34, free_bytes=None, capability=None, fast_bf16=False)
GPU = DeviceFacts(
    kind="cuda", name="GPU Y", memory_bytes=80 * 2**30, free_bytes=79 * 2**30, capability="9.0", fast_bf16=True
)
FACTS = MachineFacts(cuda="12.8", hip=None, driver=None, problem=None, devices=(CPU,))
Usage = namedtuple("Usage", "total used free")


def facts(**changes):
    return FACTS.model_copy(update=changes)


def assert_says(check: Callable[[], str], level: str, *words: str) -> Check:
    """Asserts that `check` ends with `level`, a fix unless that is ok, and `words`; returns its result."""
    result = carried_out("a check", check)
    text = f"{result.what} | {result.fix}"
    assert result.level == level, text
    assert (result.fix is None) == (level == "ok")
    for word in words:
        assert word in text, text
    return result


# The command.


@pytest.mark.slow
def test_a_good_machine_passes_and_nothing_is_left_behind(tmp_path):
    out, err = run("doctor", "--runs-dir", tmp_path / "new/runs", "--json")
    document = json.loads(out)
    checks = {check["name"]: check for check in document["checks"]}
    assert document["ok"] is True, checks
    assert err == ""
    for name in ("imports", "torch", "DeepSpeed", "devices", "runs directory"):
        assert checks[name]["level"] == "ok", checks[name]
    assert list(tmp_path.iterdir()) == []


def test_every_check_runs_even_if_others_fail(monkeypatch, tmp_path):
    def broken(*arguments, **named):
        raise RuntimeError("it fell over")

    for name in ("packages", "torch_build", "devices", "runs_directory", "shared_memory"):
        monkeypatch.setattr(machine, name, broken)
    checks = {check.name: check for check in machine.diagnose(tmp_path, lambda name: None)}
    assert len(checks) == 7
    for name in ("packages", "torch", "devices", "shared memory"):
        assert (checks[name].level, checks[name].what) == ("failed", "RuntimeError: it fell over")


def test_the_checks_are_shown_with_their_fixes_and_counted():
    checks = (Check("a", "ok", "fine"), Check("b", "warning", "slow", "buy another"), Check("c", "failed", "gone"))
    *_, found, fix, summary = lines_of([doctor_section(DoctorDocument(False, checks[:2]))])
    assert (found.split(), fix) == (["b", "warning:", "slow"], "fix: buy another")
    assert summary == "ok: 1, warnings: 1, failed: 0"
    *_, summary = lines_of([doctor_section(DoctorDocument(False, checks[2:]))])
    assert summary.endswith("failed: 1. Fix this first; growctl doctor can then run the other checks.")


# Imports.


def shadow(folder: Path, what: str) -> Path:
    """Creates a module in `folder` with the name of one of growctl's packages."""
    path = folder / what
    path.write_text("raise SystemExit('someone else')\n")
    return path


def test_the_doctor_reports_even_if_growctl_itself_would_import_another_model(tmp_path):
    path = shadow(tmp_path, "model.py")
    shadow(tmp_path, "stages.py")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "PYTHONSAFEPATH": "1", "COLUMNS": "300"}
    command = [sys.executable, "-m", "growctl.cli.app", "doctor"]
    with TrainingGuard.rejection():
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert str(path) in ended.stdout
    assert "Fix this first; growctl doctor can then run the other checks." in ended.stdout
    assert ended.stderr == ""


def test_with_another_model_on_pythonpath_errors_are_still_one_line(tmp_path):
    (tmp_path / "model.py").write_text("")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "growctl.cli.app", "plan", "quickstart"]
    with TrainingGuard.rejection():
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
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
        (tmp_path, "", ["-P"], REPOSITORY),
        (tmp_path, str(tmp_path), ["-P"], REPOSITORY),  # the clone's own name looks like the package
        (clone, str(clone), ["-P"], clone),
        (clone, "", [], clone),  # as `python -m`
    ]:
        environment = os.environ | {"PYTHONPATH": python_path}
        command = [sys.executable, *options, "-c", code]
        said = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True).stdout
        assert said == f"growctl, stages, model come from {home}\n"


def test_growctls_own_packages_are_named_with_their_folder():
    assert_says(check_imports, "ok", str(REPOSITORY))


# Packages.


@pytest.fixture
def versions(monkeypatch):
    """The installed versions of packages, by name; all others are not installed."""
    installed: dict[str, str] = {}

    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return installed


def test_the_needed_packages_are_those_of_the_installation_without_extras():
    needed = machine.requirements()
    assert {"torch", "deepspeed", "ninja"} <= needed.keys()
    assert "pytest" not in needed


@pytest.mark.parametrize(
    ("version", "level"),
    [("2.13.0+cpu", "ok"), ("2.11", "ok"), ("2.12.0.dev20260101", "ok"), ("2.10.1", "failed"), ("2.14.0", "failed")],
)
def test_a_version_must_be_in_the_range(versions, monkeypatch, version, level):
    monkeypatch.setattr(machine, "requirements", lambda: {"torch": Requirement("torch>=2.11,<2.14")})
    versions["torch"] = version
    assert_says(machine.packages, level, *([] if level == "ok" else [version, "pip install 'torch<2.14,>=2.11'"]))


def test_missing_and_old_packages_come_with_the_command_that_fixes_them(versions, monkeypatch):
    needed = {"rich": Requirement("rich>=13.9"), "pyyaml": Requirement("pyyaml>=6"), "numpy": Requirement("numpy>=1")}
    monkeypatch.setattr(machine, "requirements", lambda: needed)
    versions |= {"rich": "13.8", "numpy": "2.0"}
    check = assert_says(machine.packages, "failed", "pip install 'rich>=13.9' 'pyyaml>=6'")
    assert check.what == "rich 13.8; growctl needs >=13.9; pyyaml not installed"
    versions |= {"rich": "14", "pyyaml": "6.1"}
    assert_says(machine.packages, "ok", "3 packages")


@pytest.mark.parametrize(
    ("machine_facts", "level", "words"),
    [
        (facts(), "ok", "built for CUDA 12.8; no NVIDIA driver here"),
        (facts(driver="12.8", devices=(GPU,)), "ok", "the driver supports CUDA up to 12.8"),
        (facts(driver="12.8", cuda=None), "warning", "install a build for CUDA"),
        (facts(driver="12.4"), "warning", "update the NVIDIA driver, or install a torch built for CUDA 12.4"),
        (facts(driver="13.0"), "warning", "CUDA_VISIBLE_DEVICES"),
        (facts(cuda=None, hip="6.4", devices=(GPU,)), "ok", "built for ROCm 6.4"),
        (facts(cuda=None), "ok", "built for CPUs"),
        (facts(driver="13.0", problem="ImportError", devices=()), "ok", "built for CUDA 12.8"),  # devices unknown
        ("libtorch.so is missing", "failed", "cannot be used: libtorch.so is missing"),
    ],
)
def test_torchs_build_is_compared_with_the_driver(machine_facts, level, words):
    assert_says(lambda: machine.torch_build(machine_facts), level, words)


def test_a_deepspeed_that_cannot_be_imported_fails():
    broken = facts(problem="ImportError: no libaio", devices=())
    assert_says(lambda: machine.deepspeed_import(broken), "failed", "ImportError: no libaio")
    assert_says(lambda: machine.devices(broken), "failed", "ImportError: no libaio")


# Devices, disk, shared memory.


def test_devices_are_counted_by_kind_with_memory_and_precision():
    cores = len(os.sched_getaffinity(0))
    words = f"CPU X, {cores} core", "16 GiB of memory, no fast bf16, so it trains in fp32"
    assert_says(lambda: machine.devices(facts()), "ok", *words)
    two = facts(devices=(GPU, GPU))
    assert_says(lambda: machine.devices(two), "ok", "2 x GPU Y, 80 GiB, compute capability 9.0, bf16 is")


def test_busy_or_different_gpus_are_warnings():
    busy = facts(devices=(GPU, GPU.model_copy(update={"free_bytes": 10 * 2**30})))
    assert_says(lambda: machine.devices(busy), "warning", "GPU 1 has 10 GiB free", "nvidia-smi")
    mixed = facts(devices=(GPU, GPU.model_copy(update={"name": "GPU Z"})))
    assert_says(lambda: machine.devices(mixed), "warning", "1 x GPU Y", "1 x GPU Z", "slowest")


def refuses(number: int):
    def refuse(*arguments, **named):
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_runs_directory_is_tested_but_not_created(tmp_path):
    words = "renaming folders, locks, SQLite and hard links work"
    assert_says(lambda: machine.runs_directory(tmp_path), "ok", str(tmp_path), words)
    assert_says(lambda: machine.runs_directory(tmp_path / "new/runs"), "ok", f"the first run creates in {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_runs_directory_that_cannot_be_written_fails(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place, words in (
        (tmp_path / "file", "Not a directory"),
        (tmp_path / "file/runs", "Not a directory"),
        (Path("/proc/runs"), "/proc/runs cannot hold runs"),
    ):
        assert_says(partial(machine.runs_directory, place), "failed", words, "--runs-dir")
    monkeypatch.setattr(machine, "write_file", refuses(errno.EDQUOT))
    assert_says(lambda: machine.runs_directory(tmp_path), "failed", os.strerror(errno.EDQUOT), "free some space")


@pytest.mark.parametrize(
    ("free", "level", "words"),
    [
        (10**12, "ok", "1 TB free"),
        (10**9, "warning", "1 GB free"),
        (20_000_000, "failed", "20 MB free"),
    ],
)
def test_little_space_is_a_warning_and_none_a_failure(tmp_path, monkeypatch, free, level, words):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))
    assert_says(lambda: machine.disk_space(tmp_path), level, words)


def test_any_check_on_a_full_disk_says_to_free_space():
    assert_says(refuses(errno.ENOSPC), "failed", "No space left on device", "free some space, or store runs elsewhere")


def test_without_hard_links_a_growth_copies_files(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", refuses(errno.EPERM))
    assert_says(lambda: machine.runs_directory(tmp_path), "warning", "a growth copies old files")


def no_database(*arguments, **named):
    raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize(
    ("module", "name", "broken", "words"),
    [
        (fcntl, "flock", lambda *arguments: None, "two processes could hold the same lock"),
        (fcntl, "flock", refuses(errno.ENOLCK), "No locks available"),
        (os, "rename", refuses(errno.EPERM), "Operation not permitted"),
        (os, "replace", refuses(errno.EPERM), "Operation not permitted"),
        (sqlite3, "connect", no_database, "disk I/O"),
    ],
)
def test_a_missing_file_system_feature_fails_the_check(tmp_path, monkeypatch, module, name, broken, words):
    monkeypatch.setattr(module, name, broken)
    assert_says(lambda: machine.runs_directory(tmp_path), "failed", words, "flock")


@pytest.mark.parametrize(
    ("num_gpus", "free", "level", "words"),
    [
        (0, 2**26, "ok", ["0.0625 GiB of 1 GiB free"]),
        (1, 2**26, "ok", []),
        (2, 2**26, "warning", ["0.25 GiB for 2 ranks", "--ipc=host", "--shm-size=1g"]),
        (8, 2**26, "warning", ["1 GiB for 8 ranks", "--shm-size=2g"]),
        (8, 2**30, "ok", []),
    ],
)
def test_shared_memory_matters_between_gpus(tmp_path, monkeypatch, num_gpus, free, level, words):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**30, 0, free))
    on_gpus = facts(devices=(GPU,) * num_gpus)
    assert_says(lambda: machine.shared_memory(on_gpus, tmp_path), level, *words)


def test_missing_shared_memory_fails_the_check(tmp_path):
    assert_says(lambda: machine.shared_memory(facts(), tmp_path / "none"), "failed", "No such file", "--shm-size")
