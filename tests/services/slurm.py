"""SLURM: munge, slurmctld and two slurmd nodes on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.processes import output_of
from tests.services.service import Service


def _version() -> str:
    return output_of(["slurmctld", "-V"]).strip()


@contextmanager
def _start(folder: Path) -> Iterator[Path]:
    yield folder


def _sees(folder: Path) -> str:
    return output_of(["ip", "-brief", "address"]).strip()


SERVICE = Service(
    name="SLURM",
    programs=("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "munged", "mungekey"),
    modules=(),
    install="apt-get install slurmctld slurmd slurm-client munge",
    version=_version,
    start=_start,
    checks=(("network", _sees),),
)
