"""Checks of the machine: devices, the runs directory's disk, limits, shared memory."""

import fcntl
import math
import multiprocessing
import os
import resource
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from growctl.doctor.check import DISK_FULL, MORE_SPACE, Problem
from growctl.runs_dir import RunPaths
from growctl.text.formatting import byte_count, duration
from stages.checkpoint.files import sync_path, write_file
from stages.counted import counted
from stages.probe.records import MachineFacts

WRITE_BYTES = 64 * 2**20
"""Bytes written and synced to measure a disk."""
WRITE_SECONDS = 5.0
"""The measurement of a slow disk stops writing after this time."""
SLOW_BYTES_PER_SECOND = 50e6
"""A hard disk is faster. At this speed, a checkpoint of the paper's largest model takes five minutes."""
SLOW_RENAME_SECONDS = 0.1
"""A hard disk takes less to sync and rename a small file. At this speed, a checkpoint spends 50 s on it."""
RENAMES = 10
CHECKPOINT_FILES = 500
"""Files of a checkpoint of the paper's largest model: one for each parameter."""
LITTLE_SPACE = 5 * 10**9
NO_SPACE = 50 * 10**6
"""Not even the quickstart fits into less."""
FEW_FILES = 10_000
"""A checkpoint has a file for each parameter."""

LARGEST = ("1.31B", 12 * 1_310_000_000)
"""The paper's largest model and the bytes of its checkpoint: a value and two moments in float32 per parameter."""

OPEN_FILES = 1024
SHARED_MEMORY_PER_RANK = 128 * 2**20
"""Shared memory that NCCL may need for a GPU's rank: 16 channels with 4 MiB for each of its 2 neighbours. A container
has 64 MiB for all ranks by default. Ranks on CPUs exchange data through sockets and need none."""

BUSY_SHARE = 0.5
"""If less than this share of a GPU's memory is free, someone else is using the GPU."""


def devices(facts: MachineFacts | str) -> str:
    """Checks the devices for training."""
    if isinstance(facts, str) or not facts.devices:
        raise Problem(f"unknown: {facts if isinstance(facts, str) else facts.problem}", "see torch and DeepSpeed")
    if facts.devices[0].kind == "cpu":
        return _cpu(facts)
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
    if busy:
        fix = "see in nvidia-smi who uses the rest, or select other GPUs with CUDA_VISIBLE_DEVICES"
        raise Problem(f"{what}; {', '.join(busy)}", fix, "warning")
    if len(kinds) > 1:
        fix = "ranks wait for the slowest GPU: select GPUs of one kind with CUDA_VISIBLE_DEVICES"
        raise Problem(what, fix, "warning")
    return what


def _cpu(facts: MachineFacts) -> str:
    [cpu] = facts.devices
    num_cores, quota = len(os.sched_getaffinity(0)), cpu_quota()
    bf16 = "AVX512-BF16 or AMX, so bf16 is fast" if cpu.fast_bf16 else "no fast bf16, so it trains in fp32"
    what = f"no GPU; {cpu.name}, {counted(num_cores, 'core')}, {_gib(cpu.memory_bytes)} of memory, {bf16}"
    if quota is not None and quota < num_cores:
        fix = f"give it more, or start runs with launch.devices={max(1, int(quota))} and OMP_NUM_THREADS=1"
        raise Problem(f"{what}; but the container may use only {quota:g} cores' time", fix, "warning")
    return what


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """The CPU time that a container may use, in cores; None if it is not limited."""
    try:
        quota, period = path.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def runs_directory(runs_dir: Path) -> str:
    """Checks whether runs can be written there. The first run creates the folder itself."""
    place = existing_part(runs_dir)
    try:
        with scratch(runs_dir) as folder:
            write_file(folder / "file", b"anything")
    except OSError as error:
        other = "choose another with --runs-dir or GROWCTL_RUNS_DIR, or ask for permission to write there"
        fix = MORE_SPACE if error.errno in DISK_FULL else other
        raise Problem(f"{runs_dir} cannot be written: {error.strerror} ({place})", fix) from None
    return str(runs_dir) if place == runs_dir.absolute() else f"{runs_dir}, which the first run creates in {place}"


def disk_space(runs_dir: Path) -> str:
    """Checks the free space on the disk of the runs."""
    place = existing_part(runs_dir)
    free, disk = shutil.disk_usage(place).free, os.statvfs(place)
    name, size = LARGEST
    fitting = f"{counted(free // size, 'checkpoint')} of {name} parameters ({size / 1e9:.1f} GB each)"
    what = f"{byte_count(free)} free, {fitting}" + (f"; room for {disk.f_favail:,} more files" if disk.f_files else "")
    if free < LITTLE_SPACE or (disk.f_files and disk.f_favail < FEW_FILES):
        raise Problem(what, MORE_SPACE, "failed" if free < NO_SPACE else "warning")
    return what


def disk_speed(runs_dir: Path) -> str:
    """Measures how fast a file is written and synced to the disk, and how long a small file takes with its rename."""
    block = os.urandom(4 * 2**20)
    with scratch(runs_dir) as folder:
        started, written = time.monotonic(), 0
        with (folder / "speed").open("wb") as file:
            while written < WRITE_BYTES and time.monotonic() - started < WRITE_SECONDS:
                written += file.write(block)
            file.flush()
            os.fsync(file.fileno())
        speed = written / (time.monotonic() - started)
        started = time.monotonic()
        for number in range(RENAMES):
            write_file(folder / f"small-{number}", b"anything")
            sync_path(folder)
        rename_seconds = (time.monotonic() - started) / RENAMES
    return judged_speed(speed, rename_seconds)


def judged_speed(bytes_per_second: float, rename_seconds: float) -> str:
    """Judges a disk's speed in writing large files, and the time of syncing and renaming a small one."""
    name, size = LARGEST
    what = (
        f"{bytes_per_second / 1e6:,.0f} MB/s written and synced, {rename_seconds * 1e3:.3g} ms to sync and rename a "
        f"small file; a checkpoint of {name} parameters ({size / 1e9:.1f} GB, {CHECKPOINT_FILES} files) takes "
        f"{duration(size / bytes_per_second + CHECKPOINT_FILES * rename_seconds)}"
    )
    if bytes_per_second < SLOW_BYTES_PER_SECOND or rename_seconds > SLOW_RENAME_SECONDS:
        limits = f"under {SLOW_BYTES_PER_SECOND / 1e6:.0f} MB/s or over {SLOW_RENAME_SECONDS * 1e3:.0f} ms is slow"
        fix = "store runs on a faster disk with --runs-dir or GROWCTL_RUNS_DIR, or save less often (checkpoint.every)"
        raise Problem(f"{what}; {limits}", fix, "warning")
    return what


def file_system(runs_dir: Path) -> str:
    """Checks whether the runs directory's file system supports what runs need, with the same operations as runs."""
    with scratch(runs_dir) as folder:
        with _needed("replacing files"):
            write_file(folder / "file", b"first")
            write_file(folder / "file", b"second")
        with _needed("renaming folders"):
            (folder / "incomplete").mkdir()
            os.rename(folder / "incomplete", folder / "whole")
            sync_path(folder)
        with _needed("locks"), (folder / "lock").open("a+") as one, (folder / "lock").open("a+") as other:
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise OSError("two processes could hold the same lock")
        with _needed("SQLite"), closing(sqlite3.connect(RunPaths(folder).ledger, timeout=1.0)) as ledger:
            ledger.execute("CREATE TABLE work (step INTEGER)")
            ledger.commit()
        try:
            os.link(folder / "file", folder / "link")
        except OSError as error:
            fix = "store runs on a file system with hard links: a growth then writes only what it adds"
            raise Problem(f"no hard links ({error.strerror}), so a growth copies old files", fix, "warning") from None
    return "replacing files, renaming folders, locks, SQLite and hard links work"


@contextmanager
def _needed(ability: str) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        fix = "store runs on a local disk or another file system; mount NFS without nolock, and Lustre with -o flock"
        raise Problem(f"{ability}: {error}", fix) from None


def open_files() -> str:
    """Checks the limit on open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return f"up to {'any number' if soft == resource.RLIM_INFINITY else soft} at a time"
    fix = f"ulimit -n {OPEN_FILES}, or raise the limit in /etc/security/limits.conf"
    raise Problem(f"up to {soft} at a time; NCCL and data preparation may need {OPEN_FILES}", fix, "warning")


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


def existing_part(path: Path) -> Path:
    """`path` if it exists, else the nearest existing folder or file above it."""
    path = path.absolute()
    return next(part for part in (path, *path.parents) if os.path.lexists(part))


@contextmanager
def scratch(runs_dir: Path) -> Iterator[Path]:
    """A temporary folder on the runs directory's disk. No run's name starts like its name."""
    with TemporaryDirectory(prefix=".growctl-doctor-", dir=existing_part(runs_dir)) as folder:
        yield Path(folder)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
