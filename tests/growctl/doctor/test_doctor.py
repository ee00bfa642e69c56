"""`growctl doctor` on good and bad machines, with simulated conditions and real ranks."""

import errno
import fcntl
import importlib.metadata
import json
import os
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from growctl.doctor import diagnosis, machine, software
from growctl.doctor.check import Check, carried_out
from growctl.doctor.imports import ROOT, check_imports, imports
from growctl.launch.local import local_environment
from stages.probe.machine_facts import DeviceFacts, MachineFacts
from tests.growctl.runs import run, run_here, wait_for
from tests.workers import REPOSITORY, TrainingGuard

CPU = DeviceFacts(kind="cpu", name="CPU X", memory_bytes=2**34, free_bytes=None, capability=None, fast_bf16=False)
GPU = DeviceFacts(
    kind="cuda", name="GPU Y", memory_bytes=80 * 2**30, free_bytes=79 * 2**30, capability="9.0", fast_bf16=True
)
FACTS = MachineFacts(
    torch="2.13.0", cuda="12.8", hip=None, driver=None, deepspeed="0.19.8", problem=None, devices=(CPU,)
)
Usage = namedtuple("Usage", "total used free")


def facts(**changes):
    return FACTS.model_copy(update=changes)


def assert_says(check: Check, state: str, *words: str) -> Check:
    """Asserts that `check` has `state`, a fix unless it is ok, and contains `words`; returns it."""
    text = f"{check.found} | {check.fix}"
    assert check.state == state, text
    assert (check.fix is None) == (state == "ok")
    for word in words:
        assert word in text, text
    return check


# The command, with real ranks.


@pytest.mark.trains
def test_a_good_machine_passes_with_real_ranks(tmp_path, tmp_path_factory, monkeypatch):
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    devices = "auto" if torch.cuda.is_available() else 2
    out, err = run("doctor", "--devices", devices, "--runs-dir", tmp_path / "new/runs", "--json")
    document = json.loads(out)
    checks = {check["name"]: check for check in document["checks"]}
    assert document["ok"] is True, checks
    assert err == ""
    for name in ("imports", "torch", "DeepSpeed", "devices", "file system", "all-reduce"):
        assert checks[name]["state"] == "ok", checks[name]
    assert re.search(
        r"(gloo, 2|nccl, \d+) ranks: correct sums; 64 MiB in |nccl: one rank", checks["all-reduce"]["found"]
    )
    assert list(tmp_path.iterdir()) == []
    assert list(temporary.glob("growctl-*")) == []


@pytest.mark.trains
def test_ranks_that_time_out_are_ended_and_their_log_is_named(monkeypatch):
    check = assert_says(
        diagnosis.all_reduce(2, num_bytes=4096, patience=0.05), "failed", "2 ranks: did not finish within 0.05 s"
    )
    log = Path(check.fix.split()[-1])
    assert log.is_file()
    wait_for(lambda: not running(str(log.parent)))
    shutil.rmtree(log.parent)


@pytest.mark.trains
def test_the_error_of_a_failed_rank_is_reported(monkeypatch):
    monkeypatch.setattr(diagnosis, "FLOAT32_BYTES", 8192)  # so that there is nothing to add up
    check = assert_says(diagnosis.all_reduce(1, num_bytes=4096), "failed", "1 rank: ", "ValidationError", "log.txt")
    shutil.rmtree(Path(check.fix.split()[-1]).parent)


def running(words: str) -> bool:
    """Whether a process has `words` in its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                command = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if words in command:
                return True
    return False


def test_asking_for_too_many_gpus_fails_with_a_fix(monkeypatch):
    def no_such_many(wanted, batch_size):
        raise diagnosis.LaunchError(f"launch.devices = {wanted}: this machine has 1 GPU")

    monkeypatch.setattr(diagnosis, "local_devices", no_such_many)
    assert_says(diagnosis.all_reduce(9), "failed", "this machine has 1 GPU", "--devices")


@pytest.mark.parametrize("devices", ["0", "-1", "two", "1.5", "", "9" * 5000], ids=lambda value: value[:9])
def test_an_invalid_number_of_ranks_is_unusable_input(devices):
    out, err = run_here("doctor", f"--devices={devices}", expect=2)
    assert (out, err) == ("", f"growctl: --devices {devices!r}: must be auto, or a whole number above 0\n")


def test_every_check_runs_even_if_others_fail(monkeypatch, tmp_path):
    def broken(*arguments, **named):
        raise RuntimeError("it fell over")

    for module, names in {
        software: ["python_version", "package", "other_packages", "compiler", "ninja"],
        machine: ["devices", "runs_directory", "open_files", "shared_memory"],
        diagnosis: ["all_reduce", "run_command"],
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, broken)
    checks = {check.name: check for check in diagnosis.diagnose(tmp_path, 1, lambda name: None)}
    assert len(checks) == 13
    for name in ("Python", "torch", "C++ compiler", "open files", "shared memory", "all-reduce"):
        assert_says(checks[name], "failed", "RuntimeError: it fell over")
    assert_says(checks["devices"], "failed", "unknown: RuntimeError: it fell over")


def test_a_check_that_raises_is_a_failed_check():
    def broken() -> Check:
        raise ZeroDivisionError("division by zero")

    assert_says(carried_out("x", broken), "failed", "ZeroDivisionError: division by zero")


# What ranks say.


def result(wrong=0, num_ranks=4, seconds=0.5):
    return {"backend": "gloo", "num_ranks": num_ranks, "wrong_elements": wrong, "seconds": seconds}


def test_bandwidth_is_computed_from_the_slowest_rank():
    check = diagnosis.judged([result(), result(seconds=1.0), result(), result()], 4, 64 * 2**20)
    assert_says(check, "ok", "gloo, 4 ranks: correct sums; 64 MiB in 1e+03 ms, 0.101 GB/s per rank")


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([result(), result(wrong=3), result(), result()], "1 of 4 ranks got wrong sums"),
        ([result(), result(), result()], "1 of 4 ranks did not take part"),
        ([result(num_ranks=1)] * 4, "4 of 4 ranks did not take part"),
        ([], "4 of 4 ranks did not take part"),
    ],
)
def test_wrong_sums_or_a_missing_rank_fail_the_check(results, words):
    assert_says(diagnosis.judged(results, 4, 4096), "failed", words)


def test_a_single_rank_has_no_bandwidth():
    assert "GB/s" not in assert_says(diagnosis.judged([result(num_ranks=1)], 1, 4096), "ok").found


# Imports.


def shadow(folder: Path, what: str) -> Path:
    """Creates something in `folder` with the name of one of growctl's packages."""
    folder.mkdir(exist_ok=True)
    path = folder / what
    if what.endswith(".py"):
        path.write_text("raise SystemExit('someone else')\n")
    else:
        path.mkdir()
        (path / "notes.txt").touch()
        if what != "model":  # which stays a plain folder
            (path / "__init__.py").touch()
    return path


@pytest.mark.parametrize(
    ("what", "harmful"), [("model.py", True), ("stages.py", True), ("stages", True), ("model", False)]
)
def test_another_package_on_pythonpath_is_reported_only_if_workers_would_import_it(
    tmp_path, monkeypatch, what, harmful
):
    path = shadow(tmp_path / "other", what)
    monkeypatch.setenv("PYTHONPATH", str(path.parent))
    monkeypatch.chdir(tmp_path)
    code = "import model.config, stages.spec; print(model.__file__, model.config.__file__, stages.__file__)"
    worker = subprocess.run(
        [sys.executable, "-c", code], env=local_environment(1, gpus=False), capture_output=True, text=True, check=False
    )
    assert (worker.returncode != 0 or str(path) in worker.stdout) == harmful
    if harmful:
        assert_says(check_imports(), "failed", f"workers would import {path} instead", "PYTHONPATH")
    else:
        assert_says(check_imports(), "ok", str(REPOSITORY))


def test_a_model_py_in_the_working_directory_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    path = shadow(tmp_path, "model.py")
    monkeypatch.chdir(tmp_path)
    assert_says(
        check_imports(), "warning", "`python -m` in this directory would import", str(path), "move or rename it"
    )
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert_says(check_imports(), "ok")
    monkeypatch.delenv("PYTHONSAFEPATH")
    monkeypatch.chdir(REPOSITORY)
    assert_says(check_imports(), "ok")


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


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["plan", "quickstart"], 1, "'model' is not a package; growctl doctor shows where it is imported from"),
        (["doctor", "--devices", "x"], 2, "--devices 'x': must be auto, or a whole number above 0"),
    ],
)
def test_with_another_model_on_pythonpath_errors_are_still_one_line(tmp_path, arguments, code, message):
    (tmp_path / "model.py").write_text("")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "growctl.cli.app", *arguments]
    with TrainingGuard.rejection():
        ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, "")
    [line] = ended.stderr.splitlines()
    assert line.startswith("growctl: ")
    assert line.endswith(message)


def test_packages_that_workers_would_not_find_are_a_failure():
    there = {"growctl": ROOT / "growctl", "stages": None, "model": None}
    assert_says(imports(there, there), "failed", "would not find stages, model", "pip install -e")


# Packages, compilers, programs.


def test_the_version_ranges_come_from_pyproject(monkeypatch):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    python, needed = software.requirements()

    def gone(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", gone)
    assert software.requirements()[0] == SpecifierSet(project["requires-python"])
    assert {"torch", "deepspeed", "ninja"} <= software.requirements()[1].keys()
    assert {"torch", "deepspeed", "ninja"} <= needed.keys()
    assert "pytest" not in needed
    assert python.contains("3.11.0")


TORCH = Requirement("torch>=2.11,<2.14")


@pytest.mark.parametrize(
    ("version", "state"),
    [("2.13.0+cpu", "ok"), ("2.11", "ok"), ("2.12.0.dev20260101", "ok"), ("2.10.1", "failed"), ("2.14.0", "failed")],
)
def test_a_version_must_be_in_the_range(version, state):
    assert_says(software.package("torch", TORCH, version), state, version)


def test_a_missing_or_old_package_comes_with_the_command_that_fixes_it():
    assert_says(software.package("torch", TORCH, None), "failed", "not installed", "pip install 'torch<2.14,>=2.11'")
    needed = {"rich": Requirement("rich>=13.9"), "pyyaml": Requirement("pyyaml>=6"), "numpy": Requirement("numpy>=1")}
    check = software.other_packages(needed, {"rich": "13.8", "pyyaml": None, "numpy": "2.0"})
    assert_says(check, "failed", "rich 13.8", "pyyaml not installed", "pip install 'rich>=13.9' 'pyyaml>=6'")
    assert "numpy" not in check.found
    assert_says(software.other_packages(needed, dict.fromkeys(needed, "99")), "ok", "3 others")


def test_a_python_that_is_too_old_fails():
    assert_says(software.python_version("3.10.4", SpecifierSet(">=3.11")), "failed", "3.10.4", ">=3.11")
    assert_says(software.python_version("3.12.0", SpecifierSet(">=3.11")), "ok", sys.executable)


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (facts(), "ok", "built for CUDA 12.8; no NVIDIA driver here"),
        (facts(driver="12.8", devices=(GPU,)), "ok", "the driver supports CUDA up to 12.8"),
        (facts(driver="12.8", cuda=None), "warning", "install a build for CUDA"),
        (facts(driver="12.4"), "warning", "update the NVIDIA driver, or install a torch built for CUDA 12.4"),
        (facts(driver="13.0"), "warning", "CUDA_VISIBLE_DEVICES"),
        (facts(cuda=None, hip="6.4", devices=(GPU,)), "ok", "built for ROCm 6.4"),
        (facts(cuda=None), "ok", "built for CPUs"),
        (facts(driver="13.0", problem="ImportError", devices=()), "ok", "built for CUDA 12.8"),  # devices unknown
    ],
)
def test_torchs_build_is_compared_with_the_driver(found, state, words):
    assert_says(software.torch_build(Check("torch", "ok", "2.13.0"), found), state, words)


def test_a_torch_or_deepspeed_that_cannot_be_imported_fails():
    broken = facts(problem="ImportError: no libaio", devices=())
    assert_says(
        software.deepspeed_import(Check("DeepSpeed", "ok", "0.19.8"), broken), "failed", "ImportError: no libaio"
    )
    assert_says(machine.devices(broken, 4, None), "failed", "DeepSpeed cannot be imported")
    assert_says(
        diagnosis._torch("ImportError: libcudart.so.12"), "failed", "cannot be used: ImportError: libcudart.so.12"
    )


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_a_path_without_a_compiler_is_a_warning(tmp_path):
    assert_says(software.compiler({"PATH": str(tmp_path)}), "warning", "c++ is not installed", "apt install g++", "CXX")
    assert_says(
        software.compiler({"PATH": str(tmp_path), "CXX": "clang++-99"}), "warning", "clang++-99 is not installed"
    )


def test_a_compiler_without_headers_is_a_warning_with_its_error(tmp_path):
    path = program(
        tmp_path,
        "c++",
        '[ "$1" = --version ] && exit 0\necho "<stdin>:1:10: fatal error: concepts" >&2; echo stopped. >&2; exit 1',
    )
    assert_says(
        software.compiler({"PATH": str(tmp_path)}), "warning", f"{path} does not compile", "fatal error: concepts"
    )


@pytest.mark.skipif(shutil.which("c++") is None, reason="no compiler here")
def test_a_compiler_that_compiles_is_ok():
    assert_says(software.compiler(os.environ), "ok", shutil.which("c++") or "")


def test_ninja_on_path_beside_python_broken_or_absent(tmp_path):
    empty = {"PATH": str(tmp_path / "empty")}
    installed = program(tmp_path / "scripts", "ninja", "echo 1.12.1")
    assert_says(software.ninja({"PATH": str(installed.parent)}), "ok", "1.12.1", str(installed))
    assert_says(software.ninja(empty, installed.parent), "warning", "is not on PATH", f"add {installed.parent} to PATH")
    assert_says(software.ninja(empty, tmp_path), "warning", "not installed", "pip install ninja")
    broken = program(tmp_path / "broken", "ninja", "echo no libstdc++ >&2; exit 1")
    assert_says(software.ninja({"PATH": str(broken.parent)}), "warning", "does not start: no libstdc++")


def test_missing_cluster_programs_are_not_a_failure(tmp_path):
    program(tmp_path, "pdsh", "")
    hostfile, slurm = software.cluster_programs({"PATH": str(tmp_path)})
    assert_says(hostfile, "ok", "pdsh installed; ssh, mpirun not installed (needed only for launch.cluster: hostfile)")
    assert_says(
        slurm, "ok", "sbatch, squeue, srun, scontrol, scancel not installed (needed only for launch.cluster: slurm)"
    )


# Devices, disk, limits.


def test_devices_are_counted_by_kind_with_memory_and_precision():
    assert_says(machine.devices(facts(), 4, None), "ok", "CPU X, 4 cores, 16 GiB", "no fast bf16, so it trains in fp32")
    assert_says(
        machine.devices(facts(devices=(GPU, GPU)), 4, None), "ok", "2 x GPU Y, 80 GiB, compute capability 9.0, bf16 is"
    )


def test_a_container_with_less_cpu_time_than_cores_is_a_warning(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert_says(
        machine.devices(facts(), 64, machine.cpu_quota(tmp_path / "cpu.max")),
        "warning",
        "1.5 cores",
        "launch.devices=1",
    )
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cpu_quota(tmp_path / "cpu.max") is None
    assert machine.cpu_quota(tmp_path / "none") is None


def test_busy_or_different_gpus_are_warnings():
    busy = GPU.model_copy(update={"free_bytes": 10 * 2**30})
    assert_says(machine.devices(facts(devices=(GPU, busy)), 4, None), "warning", "GPU 1 has 10 GiB free", "nvidia-smi")
    other = GPU.model_copy(update={"name": "GPU Z"})
    assert_says(machine.devices(facts(devices=(GPU, other)), 4, None), "warning", "1 x GPU Y", "1 x GPU Z", "slowest")


def test_a_runs_directory_is_tested_but_not_created(tmp_path):
    assert_says(machine.runs_directory(tmp_path), "ok", str(tmp_path))
    assert_says(machine.runs_directory(tmp_path / "new/runs"), "ok", f"the first run creates in {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_runs_directory_that_cannot_be_written_fails(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert_says(machine.runs_directory(tmp_path / "file"), "failed", "Not a directory", "--runs-dir")
    assert_says(machine.runs_directory(tmp_path / "file/runs"), "failed", "Not a directory", "--runs-dir")
    assert_says(machine.runs_directory(Path("/proc/runs")), "failed", "/proc/runs cannot be written", "--runs-dir")
    monkeypatch.setattr(machine, "write_file", refuses(errno.EDQUOT))
    assert_says(machine.runs_directory(tmp_path), "failed", os.strerror(errno.EDQUOT))


def test_little_space_is_a_warning(tmp_path, monkeypatch):
    assert_says(
        machine.disk_space(tmp_path), "ok" if shutil.disk_usage(tmp_path).free > machine.LITTLE_SPACE else "warning"
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12, 10**9))
    assert_says(machine.disk_space(tmp_path), "warning", "1 GB free, 0 checkpoints of 1.31B parameters", "--runs-dir")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 10**12))
    assert_says(machine.disk_space(tmp_path), "ok", "1,000 GB free, 63 checkpoints")


def test_a_disk_without_space_fails_with_megabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12, 20_000_000))
    assert_says(machine.disk_space(tmp_path), "failed", "20 MB free, 0 checkpoints", "--runs-dir")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12, 200_000_000))
    assert_says(machine.disk_space(tmp_path), "warning", "200 MB free, 0 checkpoints")


def test_a_check_on_a_full_disk_says_to_free_space(tmp_path, monkeypatch):
    full = carried_out("disk speed", lambda: refuses(errno.ENOSPC)())
    assert_says(full, "failed", "the disk is full: No space left on device", "free some space, or store runs elsewhere")
    monkeypatch.setattr(machine, "write_file", refuses(errno.ENOSPC))
    assert_says(machine.runs_directory(tmp_path), "failed", "the disk is full", "free some space")


def test_measuring_disk_speed_leaves_no_files(tmp_path):
    assert_says(
        machine.disk_speed(tmp_path, 2**22), machine.disk_speed(tmp_path, 2**22).state, "MB/s written and synced"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_a_warning_with_the_time_of_a_checkpoint_and_the_limit():
    assert_says(
        machine.judged_speed(500e6, 0.002), "ok", "500 MB/s", "2 ms", "1.31B parameters (15.7 GB, 500 files) takes 32s"
    )
    assert_says(machine.judged_speed(12e6, 0.002), "warning", "takes 21m", "slow: under 50 MB/s", "checkpoint.every")
    assert_says(machine.judged_speed(500e6, 0.4), "warning", "400 ms", "takes 3m 51s", "slow: over 100 ms")
    assert_says(machine.judged_speed(1e6, 0.4), "warning", "slow: under 50 MB/s and over 100 ms", "GROWCTL_RUNS_DIR")


def refuses(number: int):
    def refuse(*arguments, **named):
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_file_system_is_tested_with_the_operations_of_runs_and_left_unchanged(tmp_path):
    assert_says(
        machine.file_system(tmp_path / "new"), "ok", "replacing files, renaming folders, locks, SQLite and hard links"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_hard_links_a_growth_copies_files(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", refuses(errno.EPERM))
    assert_says(machine.file_system(tmp_path), "warning", "a growth copies old files")


@pytest.mark.parametrize(
    ("module", "name", "broken", "words"),
    [
        (fcntl, "flock", lambda *arguments: None, "locks: two processes could hold the same lock"),
        (fcntl, "flock", refuses(errno.ENOLCK), "locks: No locks available"),
        (os, "rename", refuses(errno.EPERM), "renaming folders: Operation not permitted"),
        (os, "replace", refuses(errno.EPERM), "replacing files: Operation not permitted"),
        (
            sqlite3,
            "connect",
            lambda *a, **n: (_ for _ in ()).throw(sqlite3.OperationalError("disk I/O error")),
            "SQLite: disk I/O",
        ),
    ],
)
def test_a_missing_file_system_feature_fails_the_check(tmp_path, monkeypatch, module, name, broken, words):
    monkeypatch.setattr(module, name, broken)
    assert_says(machine.file_system(tmp_path), "failed", words, "flock")


def test_a_low_limit_on_open_files_is_a_warning_with_a_fix():
    assert_says(machine.open_files(1024, 4096), "ok", "1024")
    assert_says(machine.open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", "any number")
    assert_says(machine.open_files(256, 4096), "warning", "256", "ulimit -n 4096")
    assert_says(machine.open_files(256, resource.RLIM_INFINITY), "warning", "ulimit -n 65536")
    assert_says(machine.open_files(256, 256), "warning", "limits.conf")


def test_shared_memory_matters_between_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**26, 0, 2**26))
    assert_says(machine.shared_memory(0, tmp_path), "ok", "0.0625 GiB of 0.0625 GiB free")
    assert_says(machine.shared_memory(1, tmp_path), "ok")
    assert_says(machine.shared_memory(2, tmp_path), "warning", "0.25 GiB for 2 ranks", "--ipc=host", "--shm-size=1g")
    assert_says(machine.shared_memory(8, tmp_path), "warning", "1 GiB for 8 ranks", "--shm-size=2g")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**30, 2**30 - 2**26, 2**26))
    assert_says(machine.shared_memory(2, tmp_path), "warning", "0.0625 GiB of 1 GiB free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**30, 0, 2**30))
    assert_says(machine.shared_memory(8, tmp_path), "ok")
    monkeypatch.setattr(shutil, "disk_usage", refuses(errno.ENOENT))
    assert_says(machine.shared_memory(0, tmp_path / "none"), "failed", "No such file", "--shm-size")
