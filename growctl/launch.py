"""How workers start: what every cluster has in common, and how they start on this machine.

A `Launch` is all that is done to start the workers of one stage: files, a command, its environment. `--dry-run` prints
one, a run starts it. The command's process lives as long as the workers, and they end when the runner does
(stages/lifeline.py).
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from stages.lifeline import STDIN, VARIABLE, Lifeline

MOST_CPU_RANKS = 8
"""Ranks that `auto` starts on a CPU at most; further cores become threads."""

FIRST_PORT, NUM_PORTS = 20_000, 12_000
"""Ports that ranks of this machine meet on, below those that Linux hands out (from 32768 on by default)."""

GPU_FILES = ("nvidia*", "kfd", "dxg")
"""Device files of GPUs in /dev: NVIDIA's, AMD's, and those that Windows lends to Linux."""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
"""Has glibc's allocator keep what tensors leave for the next ones. By default it asks the system for every large one
anew, and each page of it costs a page fault: more than most operations on it. Other allocators do not know these."""

ENDING_SECONDS = 10.0
"""Patience with workers whose standard input has ended: what started them ends those that stay (on_machine.py)."""

STOP_SECONDS = 40.0
"""Patience with workers on other machines: DeepSpeed's launcher there gives its own 30 seconds."""

PLAIN_PATH = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
"""Paths that mean themselves to a shell, to pdsh and to SLURM."""


_SAID = re.compile(r"(?:\S+: )?growctl: (.*)")
"""A worker's own word on its failure, behind its host's name where pdsh collects the output."""


class LaunchError(ValueError):
    """A cluster that the work cannot be started on as asked: the user's to mend, exit code 2."""


@dataclass(frozen=True)
class Launch:
    """How the workers of one stage start."""

    command: list[str]
    """A process of this machine that ends when the workers have."""

    environment: dict[str, str]
    """What is added to this process's environment for the command."""

    lifeline: Path | None = None
    """The file that the workers hang on; None: their standard input."""

    files: dict[Path, str] = field(default_factory=dict)
    """Written before the command starts."""

    directory: Path | None = None
    """Where the command runs; None: where we are."""


class Machines(Protocol):
    """Where the stages of a run are trained."""

    @property
    def devices(self) -> int:
        """Ranks on each machine."""

    def check(self, runs_dir: Path) -> None:
        """LaunchError where a program that `launch` needs is missing, or `runs_dir` cannot be used."""

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """How the workers of an attempt at a stage start on so many machines: each as `python -m stages.train SPEC`."""


@dataclass(frozen=True)
class Local:
    """This machine."""

    devices: int
    gpus: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    """`launch.environment`."""

    def check(self, runs_dir: Path) -> None:
        """All that it takes came with growctl."""

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """growctl's own launcher of ranks (growctl/on_machine.py)."""
        assert nodes == 1
        environment = _local_additions(self.devices, self.gpus) | dict(self.environment)
        return Launch(local_command(spec, self.devices), environment)


def local_devices(wanted: Literal["auto"] | int, batch_size: int) -> tuple[int, bool]:
    """(ranks, whether they are GPUs). `auto` is every GPU; without one, a rank a core as far as they divide the batch.

    On a CPU, ranks wait for each other once a step, threads at every small operation: two ranks were as fast as two
    threads on a quiet machine and ten times faster on a busy one. Raises ValueError where more GPUs are asked for than
    there are.
    """
    num_gpus = _num_gpus()
    if wanted == "auto" and num_gpus:
        return num_gpus, True
    if wanted == "auto":
        most = min(len(os.sched_getaffinity(0)), MOST_CPU_RANKS)
        return max(ranks for ranks in range(1, most + 1) if batch_size % ranks == 0), False
    if num_gpus and wanted > num_gpus:
        raise LaunchError(f"launch.devices = {wanted}: this machine has {num_gpus} GPUs")
    return wanted, num_gpus > 0


def _num_gpus() -> int:
    """GPUs that torch can use. Where there is no device file of one, torch, slow to import, need not be asked."""
    if not any(True for pattern in GPU_FILES for _ in Path("/dev").glob(pattern)):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_memory_bytes() -> int:
    """Memory of one of this machine's GPUs: the smallest's."""
    import torch

    return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def local_command(spec: Path, num_devices: int, module: str = "stages.train") -> list[str]:
    """The command line that starts `num_devices` workers on this machine, each `python -m MODULE SPEC`."""
    ranks = [str(num_devices), str(free_port()), "-m", module, str(spec)]
    return [sys.executable, "-m", "growctl.on_machine", *ranks]


def local_environment(num_devices: int, gpus: bool) -> dict[str, str]:
    """The workers' environment. All traffic stays on the loopback; without GPUs the cores are shared out evenly."""
    return os.environ | _local_additions(num_devices, gpus)


def _local_additions(num_devices: int, gpus: bool) -> dict[str, str]:
    # Workers import growctl's packages, whatever lies in the directory that the user stands in.
    added = {"PYTHONSAFEPATH": "1", VARIABLE: STDIN, "GLOO_SOCKET_IFNAME": "lo"}
    if "NCCL_SOCKET_IFNAME" not in os.environ:
        added["NCCL_SOCKET_IFNAME"] = "=lo"  # that one, not all whose names begin so
    if not gpus:
        added |= {"DS_ACCELERATOR": "cpu"}
        threads = max(1, len(os.sched_getaffinity(0)) // num_devices)
        # Threads that spin for long while they wait are ruinous as soon as anything else wants a core (20 times slower
        # was seen), and threads that sleep at once pay for it at every small operation: spin briefly.
        defaults = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "20000", **KEPT_MEMORY}
        added |= {name: value for name, value in defaults.items() if name not in os.environ}
    return added


def start(launch: Launch, log: Path) -> subprocess.Popen[bytes]:
    """Starts the workers, with all output appended to `log`, in a session of their own: Ctrl-C reaches only us.

    Where they hang on standard input, it is a pipe that nobody writes to: it ends when this process does, and with it
    the workers, however this process dies.
    """
    for path, content in launch.files.items():
        with open(path, "w", opener=_private) as file:
            file.write(content)
    with log.open("ab") as output:
        return subprocess.Popen(
            launch.command,
            cwd=launch.directory,
            env=os.environ | launch.environment,
            stdin=subprocess.PIPE if launch.lifeline is None else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read: an environment may hold what others should not see."""
    return os.open(path, flags, 0o600)


def start_workers(
    spec: Path, log: Path, num_devices: int, gpus: bool, module: str = "stages.train"
) -> subprocess.Popen[bytes]:
    """Starts `num_devices` workers on this machine, each `python -m MODULE SPEC`; as `start` does."""
    return start(Launch(local_command(spec, num_devices, module), _local_additions(num_devices, gpus)), log)


def stop_workers(process: subprocess.Popen[bytes], patience: float = ENDING_SECONDS) -> None:
    """Ends the workers; returns once the process that started them is gone. It may end by itself for `patience` s."""
    if process.stdin:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    if process.poll() is None or process.stdin:
        kill_workers(process)  # on this machine also those that outlived what started them


def kill_workers(process: subprocess.Popen[bytes]) -> None:
    """Kills the process that started the workers, and on this machine them too: they are of its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Workers:
    """Started workers, which end when the `with` block does."""

    def __init__(self, launch: Launch, log: Path) -> None:
        """Starts them, with all output appended to `log`."""
        self._lifeline = Lifeline(launch.lifeline) if launch.lifeline else None
        if self._lifeline:
            self._lifeline.start()
        self._process = start(launch, log)

    def running(self) -> bool:
        """Whether any worker is left. To be asked often: it also tells them that we are here."""
        if self._lifeline:
            self._lifeline.beat()
        return self._process.poll() is None

    @property
    def exit_code(self) -> int:
        """What they ended with, once none is left."""
        return self._process.wait()

    def kill(self) -> None:
        """Ends workers that do not answer, on this machine at once."""
        if not self._lifeline:
            kill_workers(self._process)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: Any) -> None:
        """Ends them. Without their file they end by themselves, on all machines.

        DeepSpeed's runner would kill every launcher of this user there, of other runs too, so it is told nothing unless
        that does not help.
        """
        if self._lifeline:
            self._lifeline.end()
        stop_workers(self._process, patience=STOP_SECONDS if self._lifeline else ENDING_SECONDS)


def told_reason(log: Path, start: int) -> str | None:
    """What a worker said of its own failure in its `log`, from the byte `start` on."""
    said = [match[1] for line in _lines(log, start) if (match := _SAID.fullmatch(line))]
    return said[-1] if said else None


def failure_reason(log: Path, start: int) -> str:
    """What a worker said of its own failure in its `log`, from the byte `start` on, else the end of what it printed."""
    if said := told_reason(log, start):
        return said
    lines = _lines(log, start)
    errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
    return errors[-1] if errors else "\n".join(lines[-5:]) or "no output"


def ending_signal(exit_code: int) -> int:
    """The signal that a process ended by; 0 where it left by itself."""
    return exit_code - 128 if exit_code > 128 else max(0, -exit_code)


def signal_reason(number: int) -> str:
    """What it means that a signal ended a worker."""
    what = "the machine ran out of memory, or someone ended it" if number == signal.SIGKILL else "it crashed"
    return f"a worker was ended by signal {number}: {what}"


def _lines(log: Path, start: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").splitlines()


def need_programs(programs: Mapping[str, str], cluster: str) -> None:
    """LaunchError where one of `programs` (name: the fix) is not on PATH; `cluster` is what needs it."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        fixes = "; ".join(dict.fromkeys(programs[name] for name in missing))
        raise LaunchError(f"{cluster}: needs {' and '.join(missing)} on PATH: {fixes}")


def plain_path(path: Path, what: str) -> Path:
    """`path` in full, where it means itself to every shell on the way; else a LaunchError."""
    full = path.absolute()
    if not PLAIN_PATH.fullmatch(str(full)):
        raise LaunchError(
            f"{what} {str(full)!r}: goes through shells on other machines, so it may have letters, digits and "
            "_ @ + = : , . / - only"
        )
    return full


def free_port() -> int:
    """A free port of the loopback, for rank 0 to listen on a moment later.

    Not one that Linux hands out by itself, which somebody may get in that moment; drawn, so that runners on one machine
    do not choose the same.
    """
    for _ in range(NUM_PORTS):
        port = FIRST_PORT + secrets.randbelow(NUM_PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port from {FIRST_PORT} to {FIRST_PORT + NUM_PORTS - 1} is free on 127.0.0.1")
