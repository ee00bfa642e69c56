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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from growctl.doctor.check import DISK_FULL, Check, full_disk
from growctl.runs_dir import RunPaths
from growctl.text.formatting import byte_count, duration
from stages.checkpoint.files import sync_path, write_file
from stages.counted import counted
from stages.probe.machine_facts import MachineFacts

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

LARGEST = ("1.31B", 12 * 1_310_000_000)
"""The paper's largest model and the bytes of its checkpoint: a value and two moments in float32 per parameter."""

OPEN_FILES = 1024
SHARED_MEMORY_PER_RANK = 128 * 2**20
"""Shared memory that NCCL may need for a GPU's rank: 16 channels with 4 MiB for each of its 2 neighbours. A container
has 64 MiB for all ranks by default. Ranks on CPUs exchange data through sockets and need none."""

BUSY_SHARE = 0.5
"""If less than this share of a GPU's memory is free, someone else is using the GPU."""


def devices(facts: MachineFacts, num_cores: int, cpu_quota: float | None) -> Check:
    """Checks the devices for training. This process has `num_cores`, of which a container may use only `cpu_quota`."""
    if not facts.devices:
        return Check("devices", "failed", "unknown, because DeepSpeed cannot be imported", "see DeepSpeed")
    if facts.devices[0].kind == "cpu":
        [cpu] = facts.devices
        bf16 = "AVX512-BF16 or AMX, so bf16 is fast" if cpu.fast_bf16 else "no fast bf16, so it trains in fp32"
        found = f"no GPU; {cpu.name}, {counted(num_cores, 'core')}, {_gib(cpu.memory_bytes)} of memory, {bf16}"
        if cpu_quota is not None and cpu_quota < num_cores:
            found += f"; but the container may use only {cpu_quota:g} cores' time"
            fix = f"give it more, or start runs with launch.devices={max(1, int(cpu_quota))} and OMP_NUM_THREADS=1"
            return Check("devices", "warning", found, fix)
        return Check("devices", "ok", found)
    kinds = Counter(
        f"{gpu.name}, {_gib(gpu.memory_bytes)}, compute capability {gpu.capability}, "
        + ("bf16 is fast" if gpu.fast_bf16 else "no fast bf16, so it trains in fp32")
        for gpu in facts.devices
    )
    found = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
    busy = [
        f"GPU {index} has {_gib(gpu.free_bytes)} free"
        for index, gpu in enumerate(facts.devices)
        if gpu.free_bytes is not None and gpu.free_bytes < BUSY_SHARE * gpu.memory_bytes
    ]
    if busy:
        fix = "see in nvidia-smi who uses the rest, or select other GPUs with CUDA_VISIBLE_DEVICES"
        return Check("devices", "warning", f"{found}; {', '.join(busy)}", fix)
    if len(kinds) > 1:
        fix = "ranks wait for the slowest GPU: select GPUs of one kind with CUDA_VISIBLE_DEVICES"
        return Check("devices", "warning", found, fix)
    return Check("devices", "ok", found)


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """The CPU time that a container may use, in cores; None if it is not limited."""
    try:
        quota, period = path.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


def runs_directory(runs_dir: Path) -> Check:
    """Checks whether runs can be written there. The first run creates the folder itself."""
    place = existing_part(runs_dir)
    try:
        with scratch(runs_dir) as folder:
            write_file(folder / "file", b"anything")
    except OSError as error:
        if error.errno in DISK_FULL:
            return full_disk("runs directory", error)
        fix = "choose another with --runs-dir or GROWCTL_RUNS_DIR, or ask for permission to write there"
        return Check("runs directory", "failed", f"{runs_dir} cannot be written: {error.strerror} ({place})", fix)
    where = "" if place == runs_dir.absolute() else f", which the first run creates in {place}"
    return Check("runs directory", "ok", f"{runs_dir}{where}")


def disk_space(runs_dir: Path) -> Check:
    """Checks the free space on the disk of the runs."""
    place = existing_part(runs_dir)
    free = shutil.disk_usage(place).free
    name, size = LARGEST
    fitting = counted(free // size, "checkpoint")
    amount = f"{free / 1e9:,.0f} GB" if free >= 1e9 else byte_count(free)
    found = f"{amount} free, {fitting} of {name} parameters ({size / 1e9:.1f} GB each)"
    elsewhere = "free some space, or store runs elsewhere with --runs-dir or GROWCTL_RUNS_DIR"
    if os.statvfs(place).f_files and os.statvfs(place).f_favail < 10_000:
        found += f"; and room for only {os.statvfs(place).f_favail} more files: a checkpoint has one per parameter"
        return Check("disk space", "warning", found, elsewhere)
    if free < NO_SPACE:
        return Check("disk space", "failed", found, elsewhere)
    if free < LITTLE_SPACE:
        return Check("disk space", "warning", found, elsewhere)
    return Check("disk space", "ok", found)


def disk_speed(runs_dir: Path, num_bytes: int = WRITE_BYTES) -> Check:
    """Measures how fast a file is written and synced to the disk, and how long a small file takes with its rename."""
    block = os.urandom(4 * 2**20)
    with scratch(runs_dir) as folder:
        started, written = time.monotonic(), 0
        with (folder / "speed").open("wb") as file:
            while written < num_bytes and time.monotonic() - started < WRITE_SECONDS:
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


def judged_speed(bytes_per_second: float, rename_seconds: float) -> Check:
    """Judges a disk's speed in writing large files, and the time of syncing and renaming a small one."""
    name, size = LARGEST
    seconds = size / bytes_per_second + CHECKPOINT_FILES * rename_seconds
    found = (
        f"{bytes_per_second / 1e6:,.0f} MB/s written and synced, {rename_seconds * 1e3:.3g} ms to sync and rename a "
        f"small file; a checkpoint of {name} parameters ({size / 1e9:.1f} GB, {CHECKPOINT_FILES} files) takes "
        f"{duration(seconds)}"
    )
    slow = [f"under {SLOW_BYTES_PER_SECOND / 1e6:.0f} MB/s"] * (bytes_per_second < SLOW_BYTES_PER_SECOND)
    slow += [f"over {SLOW_RENAME_SECONDS * 1e3:.0f} ms"] * (rename_seconds > SLOW_RENAME_SECONDS)
    if slow:
        fix = "store runs on a faster disk with --runs-dir or GROWCTL_RUNS_DIR, or save less often (checkpoint.every)"
        return Check("disk speed", "warning", f"{found}. That is slow: {' and '.join(slow)}", fix)
    return Check("disk speed", "ok", found)


def file_system(runs_dir: Path) -> Check:
    """Checks whether the runs directory's file system supports what runs need, with the same operations as runs."""
    failed: list[str] = []
    with scratch(runs_dir) as folder:
        for what, works in _ABILITIES.items():
            try:
                works(folder)
            except (OSError, sqlite3.Error) as error:
                failed.append(f"{what}: {error.strerror if isinstance(error, OSError) else error}")
        try:
            os.link(folder / "file", folder / "link")
            links = "hard links"
        except OSError:
            links = ""
    if failed:
        fix = "store runs on a local disk or another file system; mount NFS without nolock, and Lustre with -o flock"
        return Check("file system", "failed", f"at {runs_dir}: {'; '.join(failed)}", fix)
    able = ", ".join(_ABILITIES)
    if not links:
        fix = "store runs on a file system with hard links: a growth then writes only what it adds"
        return Check("file system", "warning", f"{able} work; no hard links, so a growth copies old files", fix)
    return Check("file system", "ok", f"{able} and hard links work")


def open_files(soft: int, hard: int) -> Check:
    """Checks the limit on open files; `soft` and `hard` come from `resource.getrlimit`."""
    words = f"up to {'any number' if soft == resource.RLIM_INFINITY else soft} at a time"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return Check("open files", "ok", words)
    highest = "65536" if hard == resource.RLIM_INFINITY else min(hard, 65536)
    fix = (
        f"ulimit -n {highest}"
        if hard == resource.RLIM_INFINITY or hard > soft
        else "raise it in /etc/security/limits.conf"
    )
    return Check("open files", "warning", f"{words}; NCCL and data preparation may need {OPEN_FILES}", fix)


def shared_memory(num_gpus: int, place: Path = Path("/dev/shm")) -> Check:
    """Checks shared memory, which data preparation needs for semaphores, and NCCL between the GPUs of a machine.

    A run starts one rank for each of `num_gpus`.
    """
    needed = num_gpus * SHARED_MEMORY_PER_RANK if num_gpus > 1 else 0
    docker = f"docker run --shm-size={max(1, math.ceil(2 * needed / 2**30))}g"
    fix = f"in a container, use --ipc=host, or more shared memory ({docker}); else mount -o remount,size=50% {place}"
    try:
        multiprocessing.get_context("fork").Lock()
        usage = shutil.disk_usage(place)
    except OSError as error:
        return Check("shared memory", "failed", f"{place} cannot be used: {error.strerror}", fix)
    found = f"{_gib(usage.free)} of {_gib(usage.total)} free at {place}"
    if usage.free < needed:
        reason = f"NCCL may need {_gib(needed)} for {num_gpus} ranks and then fails with a bus error"
        return Check("shared memory", "warning", f"{found}; {reason}", fix)
    return Check("shared memory", "ok", found)


def existing_part(path: Path) -> Path:
    """`path` if it exists, else the nearest existing folder or file above it."""
    path = path.absolute()
    return next(part for part in (path, *path.parents) if os.path.lexists(part))


@contextmanager
def scratch(runs_dir: Path) -> Iterator[Path]:
    """A temporary folder on the runs directory's disk. No run's name starts like its name."""
    with TemporaryDirectory(prefix=".growctl-doctor-", dir=existing_part(runs_dir)) as folder:
        yield Path(folder)


def _whole_files(folder: Path) -> None:
    write_file(folder / "file", b"first")
    write_file(folder / "file", b"second")
    if (folder / "file").read_bytes() != b"second":
        raise OSError(0, "the old file was not replaced")


def _renamed_folders(folder: Path) -> None:
    (folder / "incomplete").mkdir()
    os.rename(folder / "incomplete", folder / "whole")
    sync_path(folder)


def _locks(folder: Path) -> None:
    path = folder / "lock"
    with path.open("a+") as one, path.open("a+") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError(0, "two processes could hold the same lock")


def _sqlite(folder: Path) -> None:
    with closing(sqlite3.connect(RunPaths(folder).ledger, timeout=1.0)) as ledger:
        ledger.execute("CREATE TABLE work (step INTEGER)")
        ledger.execute("INSERT INTO work VALUES (1)")
        ledger.commit()
    with closing(sqlite3.connect(f"{(RunPaths(folder).ledger).as_uri()}?mode=ro", uri=True)) as ledger:
        ledger.execute("SELECT step FROM work").fetchone()


_ABILITIES: dict[str, Callable[[Path], None]] = {
    "replacing files": _whole_files,
    "renaming folders": _renamed_folders,
    "locks": _locks,
    "SQLite": _sqlite,
}


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
