"""Starts workers on the machines of a hostfile through DeepSpeed's runners for pdsh and Open MPI.

The machines share a file system, and growctl is installed at the same path on each. Values from YAML or the hostfile
that pass through a shell (host names, addresses, paths) may contain only characters without a special meaning there;
all other values are passed in files.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from growctl.launch.machines import Launch, LaunchError, Machines, assumed_devices, need_programs, plain_path
from growctl.schedule.launch_block import HostfileBlock, LaunchBlock
from stages.counted import counted
from stages.process.lifeline import VARIABLE
from stages.stage_dir import StagePaths

_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s+slots=([1-9]\d{0,5})\s*(?:#.*)?")
_EXAMPLE = "worker-1 slots=8"

_PROGRAMS = {"pdsh": ("pdsh", "ssh"), "openmpi": ("mpirun", "ompi_info")}
_BINDS_NO_CORES = "--launcher_args=--bind-to none"
"""An option for mpirun, which otherwise binds each rank, with all its threads, to one core."""

_CHANGES_BITS = re.compile(
    "ATEN_CPU_CAPABILITY|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|OMP_NUM_THREADS|(DNNL|MKL|ONEDNN)_.+"
)
"""Variables of growctl's environment that change how ranks round, so that all of them get the same ones."""

_SSH_OPTIONS = "PDSH_SSH_ARGS_APPEND"
"""The variable from which pdsh takes further options for ssh."""
_KEEPS_ALIVE = "-oServerAliveInterval=15 -oServerAliveCountMax=8"
"""Ends ssh two minutes after a machine has vanished from the network; otherwise nothing would ever end it."""


@dataclass(frozen=True)
class Hostfile(Machines):
    """The machines of a hostfile."""

    hosts: Mapping[str, int]
    """{host: slots}, in the file's order."""

    block: HostfileBlock

    def check(self, runs_dir: Path) -> None:
        """Raises LaunchError if a program is missing, or a path has characters that a shell would interpret."""
        runner = self.block.runner
        fix = "install them, or set another launch.hostfile.runner"
        need_programs(_PROGRAMS[runner], f"launch.cluster = 'hostfile' with runner {runner!r}", fix)
        plain_path(runs_dir, "the runs directory")
        plain_path(Path(sys.executable), "Python's path")

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """Starts DeepSpeed's multi-node runner on the first `nodes` hosts.

        The runner gets a hostfile with only those hosts and slots, because with Open MPI it has no other option to
        select them. It runs in the stage's directory, because it puts the working directory before growctl's packages.
        """
        stage = StagePaths(spec.absolute().parent)
        alive = stage.lifeline(attempt)
        hosts = list(self.hosts)[:nodes]
        address, port = self.block.master_address or hosts[0], str(self.block.master_port)
        workers = {
            "PYTHONSAFEPATH": "1",
            VARIABLE: str(alive),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            **{name: value for name, value in os.environ.items() if _CHANGES_BITS.fullmatch(name)},
            **self.environment,
        }
        return Launch(
            command=[
                *(sys.executable, "-m", "deepspeed.launcher.runner"),
                *("--hostfile", str(stage.hostfile)),
                *("--launcher", self.block.runner, *([_BINDS_NO_CORES] if self.block.runner == "openmpi" else [])),
                *("--force_multi", "--master_addr", address, "--master_port", port),
                *("--no_local_rank", "--module", "growctl.launch.start_on_host"),
                *(str(stage.environment), "stages.train.worker", str(spec.absolute())),
            ],
            environment={
                "PYTHONSAFEPATH": "1",
                _SSH_OPTIONS: f"{os.environ.get(_SSH_OPTIONS, '')} {_KEEPS_ALIVE}".strip(),
            },
            lifeline=alive,
            files={
                stage.hostfile: "".join(f"{host} slots={self.devices}\n" for host in hosts),
                stage.environment: json.dumps(workers, indent=1) + "\n",
            },
            directory=stage.directory,
        )


def hostfile_machines(launch: LaunchBlock, nodes: int) -> Hostfile:
    """The machines of `launch.hostfile`, for stages that take up to `nodes` of them.

    `launch.devices: auto` is the smallest number of slots among these hosts. Raises LaunchError if the file cannot be
    used or has too few hosts or slots.
    """
    path = Path(launch.hostfile.path)
    hosts = read_hostfile(path)
    if nodes > len(hosts):
        raise LaunchError(f"launch.nodes = {nodes}: {path} has {counted(len(hosts), 'host')}")
    used = list(hosts.items())[:nodes]
    fewest, slots = min(used, key=lambda host: host[1])
    if launch.devices != "auto" and launch.devices > slots:
        raise LaunchError(f"launch.devices = {launch.devices}: host {fewest} in {path} has slots={slots}")
    devices = slots if launch.devices == "auto" else launch.devices
    return Hostfile(assumed_devices(launch, devices), hosts, launch.hostfile, environment=launch.environment)


def read_hostfile(path: Path) -> dict[str, int]:
    """{host: slots} from a file in DeepSpeed's format: a line `name slots=8` for each host; # starts a comment.

    Raises LaunchError with file and line number.
    """
    try:
        lines = path.expanduser().read_text().splitlines()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the home directory of an unknown user
        raise LaunchError(
            f"launch.hostfile.path = {str(path)!r}: {error}; write one line for each machine into it, as in: "
            f"{_EXAMPLE}, or set launch.hostfile.path to your hostfile"
        ) from None
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if not match or match[1] in hosts:
            fix = f"write a host's name, which no other line has, and its number of devices, as in: {_EXAMPLE}"
            raise LaunchError(f"{path}, line {number}: {text[:80]!r}: {fix}")
        hosts[match[1]] = int(match[2])
    return hosts
