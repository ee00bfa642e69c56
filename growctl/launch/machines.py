"""What every cluster has in common: the machines of a run, and how the workers of a stage start on them.

A `Launch` is all that is done to start the workers of one stage: files, a command, its environment. `--dry-run` prints
one, a run starts it. The command's process lives as long as the workers, and they end when the runner does
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
"""Paths that mean themselves to a shell, to pdsh and to SLURM."""


class LaunchError(UserError):
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
        """How a stage's workers start on so many machines: each as `python -m stages.train.worker SPEC`."""


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
