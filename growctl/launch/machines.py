"""The interface that all launchers share: the machines of a run, and how a stage's workers start on them.

A `Launch` holds everything needed to start the workers of one stage: files, a command, its environment. `--dry-run`
prints it, and a run starts it. The command's process lives as long as the workers, which end when the runner does
(stages/process/lifeline.py).
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from model.errors import UserError

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


class Machines(Protocol):
    """Where the stages of a run are trained."""

    @property
    def devices(self) -> int:
        """Ranks on each machine."""

    def check(self, runs_dir: Path) -> None:
        """Raises LaunchError if a program that `launch` needs is missing, or `runs_dir` cannot be used."""

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """How a stage's workers start on `nodes` machines, each as `python -m stages.train.worker SPEC`."""


def need_programs(programs: Mapping[str, str], cluster: str) -> None:
    """Raises LaunchError if one of `programs` ({name: fix}) is not on PATH; `cluster` is the setting that needs it."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        fixes = "; ".join(dict.fromkeys(programs[name] for name in missing))
        raise LaunchError(f"{cluster}: needs {' and '.join(missing)} on PATH: {fixes}")


def plain_path(path: Path, what: str) -> Path:
    """The absolute `path`. Raises LaunchError if it has characters that a shell would interpret."""
    full = path.absolute()
    if not PLAIN_PATH.fullmatch(str(full)):
        raise LaunchError(
            f"{what} {str(full)!r}: goes through shells on other machines, so it may contain only letters, digits and "
            "_ @ + = : , . / -"
        )
    return full
