"""Checks of installed packages and of the machine: devices, the runs directory's disk, shared memory."""

import fcntl
import importlib.metadata
import math
import multiprocessing
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.version import Version

from growctl.doctor.check import DISK_FULL, MORE_SPACE, Check, Problem, carried_out
from growctl.launch.devices import ask_torch, gpus_possible
from growctl.launch.local import local_environment
from growctl.runs_dir import RunPaths
from growctl.text.formatting import byte_count
from stages.checkpoint.disk_full import existing_part, free_bytes
from stages.checkpoint.files import sync_path, write_file
from stages.counted import counted
from stages.probe.records import MachineFacts

LITTLE_SPACE = 5 * 10**9
NO_SPACE = 50 * 10**6
"""Not even the quickstart fits into less."""

SHARED_MEMORY_PER_RANK = 128 * 2**20
"""Shared memory that NCCL may need for a GPU's rank: 16 channels with 4 MiB for each of its 2 neighbours. A container
has 64 MiB for all ranks by default. Ranks on CPUs exchange data through sockets and need none."""

BUSY_SHARE = 0.5
"""If less than this share of a GPU's memory is free, someone else is using the GPU."""


def diagnose(runs_dir: Path, on_start: Callable[[str], None]) -> Iterator[Check]:
    """Yields every check except that of imports as soon as it is done; calls `on_start(name)` before each."""
    on_start("torch and DeepSpeed")
    facts = ask_torch(tuple(local_environment(1, gpus_possible()).items()), "--deepspeed")
    checks: dict[str, Callable[[], str]] = {
        "packages": packages,
        "torch": partial(torch_build, facts),
        "DeepSpeed": partial(deepspeed_import, facts),
        "devices": partial(devices, facts),
        "runs directory": partial(runs_directory, runs_dir),
        "disk space": partial(disk_space, runs_dir),
        "shared memory": partial(shared_memory, facts),
    }
    for name, check in checks.items():
        on_start(name)
        yield carried_out(name, check)


def requirements() -> dict[str, Requirement]:
    """The packages that growctl needs, by name."""
    needed = [Requirement(text) for text in importlib.metadata.requires("growctl") or []]
    return {each.name: each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})}


def packages() -> str:
    """Checks that every package is installed, in the range that growctl was tested with."""
    problems: dict[str, str] = {}
    for name, needed in requirements().items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems[name] = "not installed"
            continue
        if not needed.specifier.contains(version, prereleases=True):
            problems[name] = f"{version}; growctl needs {needed.specifier}"
    if problems:
        wanted = " ".join(f"'{name}{requirements()[name].specifier}'" for name in problems)
        raise Problem("; ".join(f"{name} {problem}" for name, problem in problems.items()), f"pip install {wanted}")
    return f"{counted(len(requirements()), 'package')}, all in the ranges that growctl allows"


def torch_build(facts: MachineFacts | str) -> str:
    """Compares what torch was built for with what the driver supports."""
    if isinstance(facts, str):
        raise Problem(f"cannot be used: {facts}", "pip install --force-reinstall torch")
    version = importlib.metadata.version("torch")
    built = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPUs"
    driver = f"the driver supports CUDA up to {facts.driver}" if facts.driver else "no NVIDIA driver here"
    what = f"{version}, built for {built}; {driver}"
    uses_gpus = any(device.kind == "cuda" for device in facts.devices)
    if uses_gpus or facts.driver is None or facts.problem:
        return what
    if facts.cuda is None:
        fix = "runs would train on the CPU; install a build for CUDA: https://pytorch.org/get-started/locally"
    elif Version(facts.driver) < Version(facts.cuda):
        fix = f"update the NVIDIA driver, or install a torch built for CUDA {facts.driver} or older"
    else:
        fix = "torch finds no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES; start a container with --gpus all"
    raise Problem(what, fix, "warning")


def deepspeed_import(facts: MachineFacts | str) -> str:
    """Checks whether DeepSpeed can be imported."""
    if not isinstance(facts, str) and facts.problem:
        fix = "install what the message asks for, then run pip install --force-reinstall --no-deps deepspeed"
        raise Problem(f"cannot be imported: {facts.problem}", fix)
    return importlib.metadata.version("deepspeed")


def devices(facts: MachineFacts | str) -> str:
    """Checks the devices for training."""
    if isinstance(facts, str) or not facts.devices:
        raise Problem(f"unknown: {facts if isinstance(facts, str) else facts.problem}", "see torch and DeepSpeed")
    first = facts.devices[0]
    if first.kind == "cpu":
        bf16 = "AVX512-BF16 or AMX, so bf16 is fast" if first.fast_bf16 else "no fast bf16, so it trains in fp32"
        num_cores = counted(len(os.sched_getaffinity(0)), "core")
        return f"no GPU; {first.name}, {num_cores}, {_gib(first.memory_bytes)} of memory, {bf16}"
    kinds = Counter(
        f"{gpu.name}, {_gib(gpu.memory_bytes)}, compute capability {gpu.capability}, "
        + ("bf16 is fast" if gpu.fast_bf16 else "no fast bf16, so it trains in fp32")
        for gpu in facts.devices
    )
    what = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
    busy = [
        f"GPU {index} has {_gib(gpu.free_bytes)} free"
        for index, gpu in enumerate(facts.devices)
        if gpu.free_bytes is not None and gpu.free_bytes < BUSY_SHARE * gpu.memory_bytes
    ]
    fix = "see in nvidia-smi who uses the rest" if busy else "ranks wait for the slowest GPU"
    if busy or len(kinds) > 1:
        fix += "; select free GPUs of one kind with CUDA_VISIBLE_DEVICES"
        raise Problem("; ".join([what, *busy]), fix, "warning")
    return what


def runs_directory(runs_dir: Path) -> str:
    """Checks whether the runs directory's file system supports what runs do, with the same operations as runs."""
    place = existing_part(runs_dir)
    try:
        with TemporaryDirectory(prefix=".growctl-doctor-", dir=place) as name:
            _work_as_runs_do(Path(name))
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        fix = (
            "choose another directory with --runs-dir or GROWCTL_RUNS_DIR, or ask for permission to write there; mount "
            "NFS without nolock, and Lustre with -o flock"
        )
        raise Problem(f"{runs_dir} cannot hold runs: {error} ({place})", fix) from None
    where = f"{runs_dir}" if place == runs_dir.absolute() else f"{runs_dir}, which the first run creates in {place}"
    return f"{where}: renaming folders, locks, SQLite and hard links work"


def _work_as_runs_do(folder: Path) -> None:
    write_file(folder / "file", b"first")
    (folder / "incomplete").mkdir()
    os.rename(folder / "incomplete", folder / "whole")
    sync_path(folder)
    with (folder / "lock").open("a+") as one, (folder / "lock").open("a+") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise OSError("two processes could hold the same lock")
    with closing(sqlite3.connect(RunPaths(folder).ledger, timeout=1.0)) as ledger:
        ledger.execute("CREATE TABLE work (step INTEGER)")
        ledger.commit()
    try:
        os.link(folder / "file", folder / "link")
    except OSError as error:
        fix = "store runs on a file system with hard links: a growth then writes only what it adds"
        raise Problem(f"no hard links ({error.strerror}), so a growth copies old files", fix, "warning") from None


def disk_space(runs_dir: Path) -> str:
    """Checks the free space on the disk of the runs."""
    free = free_bytes(runs_dir)
    what = f"{byte_count(free)} free; a checkpoint takes 12 bytes per parameter"
    if free < LITTLE_SPACE:
        raise Problem(what, MORE_SPACE, "failed" if free < NO_SPACE else "warning")
    return what


def shared_memory(facts: MachineFacts | str, place: Path = Path("/dev/shm")) -> str:
    """Checks shared memory, which data preparation needs for semaphores, and NCCL between the GPUs of a machine."""
    num_gpus = 0 if isinstance(facts, str) else sum(device.kind == "cuda" for device in facts.devices)
    needed = num_gpus * SHARED_MEMORY_PER_RANK if num_gpus > 1 else 0
    docker = f"docker run --shm-size={max(1, math.ceil(2 * needed / 2**30))}g"
    fix = f"in a container, use --ipc=host, or more shared memory ({docker}); else mount -o remount,size=50% {place}"
    try:
        multiprocessing.get_context("fork").Lock()
        usage = shutil.disk_usage(place)
    except OSError as error:
        raise Problem(f"{place} cannot be used: {error.strerror}", fix) from None
    what = f"{_gib(usage.free)} of {_gib(usage.total)} free at {place}"
    if usage.free < needed:
        reason = f"NCCL may need {_gib(needed)} for {num_gpus} ranks and then fails with a bus error"
        raise Problem(f"{what}; {reason}", fix, "warning")
    return what


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
