"""The interface that all launchers share: the machines of a run, and how a stage's workers start on them.

A `Launch` holds everything needed to start the workers of one stage: files, a command, its environment. `--dry-run`
prints it, and a run starts it. The command's process lives as long as the workers, which end when the runner does
(stages/process/lifeline.py).
"""

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from growctl.schedule.launch_block import LaunchBlock
from model.errors import UserError
from model.precision import DeviceType, Precision, RequestedPrecision
from stages.engine.devices import cpu_is_fast_at_bf16, resolve_precision

PLAIN_PATH = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
"""Paths without characters that a shell, pdsh or SLURM would interpret."""


class LaunchError(UserError):
    """The work cannot be started on the cluster as configured; the user can fix it (exit code 2)."""


@dataclass(frozen=True)
class Launch:
    """How the workers of one stage start."""

    command: list[str]
    """A process on this machine that ends when the workers have ended."""

    environment: dict[str, str]
    """Variables that the command gets in addition to this process's environment."""

    lifeline: Path | None = None
    """The workers' lifeline file; None: their standard input."""

    files: dict[Path, str] = field(default_factory=dict)
    """Files to write before the command starts, {path: content}."""

    directory: Path | None = None
    """The command's working directory; None: this process's."""


@dataclass(frozen=True)
class Devices:
    """The devices that the ranks on each machine of a run use."""

    per_machine: int
    """Ranks on each machine."""

    type: DeviceType
    fast_bf16: bool
    """Whether `training.precision: auto` is bf16 on them."""

    memory_bytes: int | None = None
    """Memory of the smallest device; None if unknown."""

    note: str | None = None
    """The assumption made if the devices are unknown."""

    def precision(self, requested: RequestedPrecision) -> Precision:
        """The precision to train in on these devices."""
        return resolve_precision(requested, self.fast_bf16)


@dataclass(frozen=True)
class Machines(ABC):
    """Where the stages of a run are trained."""

    on_each: Devices
    environment: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """`launch.environment`."""

    @property
    def devices(self) -> int:
        """Ranks on each machine."""
        return self.on_each.per_machine

    @abstractmethod
    def check(self, runs_dir: Path) -> None:
        """Raises LaunchError if a program that `launch` needs is missing, or `runs_dir` cannot be used."""

    @abstractmethod
    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """How a stage's workers start on `nodes` machines, each as `python -m stages.train.worker SPEC`."""


def assumed_devices(launch: LaunchBlock, per_machine: int, note: str | None = None) -> Devices:
    """Assumed devices of other machines: GPUs that are fast at bf16, like every device that `launch.hardware` can name.

    Without GPUs (`slurm.gpus: false`), assumes CPUs like this machine's.
    """
    if launch.cluster == "slurm" and not launch.slurm.gpus:
        return Devices(per_machine, "cpu", cpu_is_fast_at_bf16(), note=note)
    return Devices(per_machine, "cuda", fast_bf16=True, note=note)


def need_programs(programs: Iterable[str], cluster: str, fix: str) -> None:
    """Raises LaunchError if one of `programs` is not on PATH; `cluster` is the setting that needs it."""
    if missing := [name for name in programs if shutil.which(name) is None]:
        raise LaunchError(f"{cluster}: needs {' and '.join(missing)} on PATH: {fix}")


def plain_path(path: Path, what: str) -> Path:
    """The absolute `path`. Raises LaunchError if it has characters that a shell would interpret."""
    full = path.absolute()
    if not PLAIN_PATH.fullmatch(str(full)):
        raise LaunchError(
            f"{what} {str(full)!r}: goes through shells on other machines, so it may contain only letters, digits and "
            "_ @ + = : , . / -"
        )
    return full
