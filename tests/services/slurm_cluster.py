"""A SLURM cluster on this machine: a controller and two nodes, each with host name, address and processes of its own.

A node is a slurmd in a process namespace. When that is killed, every process of the node is gone at once, as after a
power failure. The nodes share this machine's file system and loopback device.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.growctl.runs import FAULTS, SCHEDULE, reached
from tests.reliability.faults.sitecustomize import VARIABLE
from tests.services.processes import background, output_of, wait_until
from tests.workers import REPOSITORY

ADDRESSES = {"controller": "10.77.0.9", "node1": "10.77.0.1", "node2": "10.77.0.2"}
"""Of the loopback device. An address besides 127.0.0.1 is needed: without one, SLURM resolves no address at all."""

NODES = ("node1", "node2")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

CONFIGURATION = """
ClusterName=growctl
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/controller
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n/pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=1
SlurmdTimeout=10
KillWait=10
MinJobAge=3600
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node1 NodeAddr={node1} Port=17001 CPUs=2 RealMemory=1000
NodeName=node2 NodeAddr={node2} Port=17002 CPUs=2 RealMemory=1000
PartitionName=batch Nodes=ALL Default=YES PriorityTier=1
PartitionName=grace Nodes=ALL PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
"""Short times, so that failures are noticed soon. `cred_expire` also delays a job that is queued again."""

ON_SLURM = (
    *("launch=slurm", "launch.devices=1", "launch.slurm.gpus=false", "launch.slurm.cpus_per_device=1"),
    "launch.slurm.partition=batch",
)


class Cluster:
    """A running cluster, and growctl on its login node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.schedule = folder / "tiny.yaml"
        self.schedule.write_text(SCHEDULE.replace("launch: {devices: 1}", ""))
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    def start_controller(self) -> None:
        """Starts slurmctld and waits until it answers."""
        log = self.folder / "slurmctld.log"
        self._stack.enter_context(background(["slurmctld", "-D"], log, self.variables))
        wait_until(lambda: "UP" in output_of(["scontrol", "ping"], self.variables, code=None), "slurmctld answers")

    def start_node(self, name: str) -> None:
        """Boots a node and waits until SLURM can use it."""
        alone = ("unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
        program = 'hostname "$1" && slurmd -D -N "$1"; exit $?'
        command = [*alone, "sh", "-c", program, "sh", name]
        log = self.folder / f"{name}.log"
        self._nodes[name] = self._stack.enter_context(background(command, log, self.variables))
        state = ("sinfo", "--noheader", "--partition=batch", f"--nodes={name}", "--format=%t")
        wait_until(lambda: self.slurm(*state).strip() == "idle", f"{name} is idle")

    def kill_node(self, name: str) -> None:
        """Kills every process of a node at once."""
        self._nodes[name].kill()
        self._nodes.pop(name).wait()

    def tidy(self) -> None:
        """Cancels every job, and boots the nodes that are dead."""
        self.slurm("scancel", "--user=root")
        wait_until(lambda: not self.slurm("squeue", "--noheader").strip(), "no job is queued or running")
        for name in NODES:
            if name not in self._nodes:
                self.start_node(name)

    def stop(self) -> None:
        """Ends every node and the controller."""
        for name in list(self._nodes):
            self.kill_node(name)
        self._stack.close()

    def slurm(self, *command: str) -> str:
        """What a command of SLURM prints."""
        return output_of(command, self.variables)

    def growctl(self, *arguments: object, seconds_per_step: float = 0.0, code: int = 0) -> str:
        """What growctl prints, with jobs whose training steps each take `seconds_per_step` longer."""
        slow: dict[str, Any] = {"name": "slow", "at": "stages.train.worker:Worker.train_step", "process": "rank"}
        slow |= {"do": "sleep", "seconds": seconds_per_step, "always": True}
        variables = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": str(REPOSITORY)} | self.variables
        if seconds_per_step:
            variables |= {VARIABLE: json.dumps({"folder": str(self.folder / "marks"), "faults": [slow]})}
            variables |= {"PYTHONPATH": f"{FAULTS}:{REPOSITORY}"}
        command = [sys.executable, "-m", "growctl.cli.app", *map(str, arguments)]
        return output_of(command, variables, folder=self.folder, code=code)

    def submitted(self, name: str, *overrides: str, seconds_per_step: float = 0.0, code: int = 0) -> str:
        """What `growctl run` prints that submits jobs to SLURM, in the runs directory `name`."""
        arguments = ["run", self.schedule, *ON_SLURM, *overrides, "--runs-dir", self.folder / name]
        return self.growctl(*arguments, seconds_per_step=seconds_per_step, code=code)

    def submit(self, name: str, *overrides: str, seconds_per_step: float = 0.0) -> list[str]:
        """The ids of the jobs that `growctl run` submits."""
        told = self.submitted(name, *overrides, seconds_per_step=seconds_per_step)
        ids = re.findall(r"^job (\d+): ", told, re.MULTILINE)
        assert ids, "no job was submitted"
        return ids

    def status(self, name: str) -> dict[str, Any]:
        """What `growctl status` says of the ladder in the runs directory `name`."""
        ladder: dict[str, Any]
        [ladder] = json.loads(self.growctl("status", "--json", "--runs-dir", self.folder / name))["runs"]
        return ladder

    def job(self, number: str) -> dict[str, str]:
        """What SLURM says of a job."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.slurm("scontrol", "show", "job", number)))

    def wait_for(self, number: str, state: str) -> dict[str, str]:
        """Waits until a job is in a state. Fails if it ends in another."""

        def arrived() -> bool:
            found = self.job(number)["JobState"]
            assert found == state or found not in ENDED, f"job {number} is {found}: {self.log(number)[-400:]}"
            return found == state

        wait_until(arrived, f"job {number} is {state}")
        return self.job(number)

    def wait_for_step(self, name: str, stage: str, step: int) -> None:
        """Waits until a stage of the ladder in the runs directory `name` has logged `step`."""
        metrics = self.folder / name / "tiny/stages" / stage / "metrics.jsonl"
        wait_until(reached(metrics, "train", step), f"stage {stage} of {name} reaches step {step}")

    def log(self, number: str) -> str:
        """What a job printed, in all its starts."""
        return "\n".join(path.read_text() for path in self.folder.glob(f"*/tiny/slurm/{number}_0_log.out"))

    @cached_property
    def two_ranks(self) -> Path:
        """A ladder trained by two ranks without SLURM."""
        return self._trained("two_ranks", ["launch.devices=2"])

    @cached_property
    def one_rank_then_two(self) -> Path:
        """A ladder trained without SLURM, its first stage by one rank, the second by two."""
        return self._trained("one_rank_then_two", ["launch.devices=1", "--until", "small"], ["launch.devices=2"])

    def _trained(self, name: str, *calls: list[str]) -> Path:
        for options in calls:
            self.growctl("run", self.schedule, "--runs-dir", self.folder / name, *options)
        return self.folder / name / "tiny"


@contextmanager
def start(folder: Path) -> Iterator[Cluster]:
    """A cluster with all its files in `folder`."""
    (folder / "controller").mkdir()
    key, log = folder / "munge.key", folder / "munge.log"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, **ADDRESSES))
    cluster = Cluster(folder)
    _name_hosts(folder)
    with ExitStack() as stack:
        munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files]
        stack.enter_context(background(munged, log))
        wait_until((folder / "munge.socket").exists, "munged answers")
        stack.callback(cluster.stop)
        cluster.start_controller()
        for name in NODES:
            cluster.start_node(name)
        yield cluster


def _name_hosts(folder: Path) -> None:
    """Addresses and names of the cluster's machines, of which this is the controller; in the script's namespaces."""
    lines = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")
    for address in ADDRESSES.values():
        output_of(["ip", "address", "add", f"{address}/32", "dev", "lo"])
    output_of(["mount", "--bind", folder / "hosts", "/etc/hosts"])
    socket.sethostname("controller")
