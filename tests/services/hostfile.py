"""The machines of a hostfile: two machines with sshd, reached through DeepSpeed's runners for pdsh and Open MPI."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.growctl.runs import SCHEDULE, final_hashes, losses, reached, workers_of
from tests.services.machines import PROGRAMS, Machine, child_of, started_machines
from tests.services.processes import WAIT_SECONDS, output_of, require, wait_until

VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "100",
    "PDSH_SSH_ARGS_APPEND": "-oServerAliveInterval=2 -oServerAliveCountMax=3",  # growctl's own takes two minutes
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
UNREACHABLE_SECONDS = 300.0
"""Far less than torch waits for a missing rank, and more than growctl takes on a busy machine."""


@dataclass(frozen=True)
class Lab:
    """Two machines, and a run of two ranks on one machine to compare with."""

    folder: Path
    first: Machine
    second: Machine

    @property
    def schedule(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def undisturbed(self) -> Path:
        """The runs directory of the run on one machine."""
        return self.folder / "undisturbed"

    def new_runs_dir(self, name: str) -> Path:
        """A runs directory that has nothing but the dataset."""
        shutil.copytree(self.undisturbed / ".datasets", self.folder / name / ".datasets")
        return self.folder / name

    def start(self, runs_dir: Path, *options: str, runner: str = "pdsh") -> subprocess.Popen[str]:
        """Starts growctl on the first machine."""
        command = [sys.executable, "-m", "growctl.cli.app", "run", self.schedule]
        hostfile = [f"launch.hostfile.path={self.folder / 'hostfile'}", f"launch.hostfile.runner={runner}"]
        launch = ["launch.cluster=hostfile", "launch.nodes=2", *hostfile, "launch.environment={OMP_NUM_THREADS: '1'}"]
        return self.first.run([*command, *launch, *options, "--runs-dir", runs_dir], VARIABLES)

    def check_same(self, runs_dir: Path) -> None:
        """Fails unless the ladder ended with the bits of the run on one machine, and left no worker."""
        ours, theirs = runs_dir / "tiny", self.undisturbed / "tiny"
        assert final_hashes(ours) == final_hashes(theirs), "the final weights differ"
        assert losses(ours) == losses(theirs), "the losses differ"
        check_no_worker(runs_dir)

    def train_until(self, process: subprocess.Popen[str], runs_dir: Path, step: int) -> None:
        """Waits until the second stage has logged `step`."""
        arrived = reached(runs_dir / "tiny/stages/1-large/metrics.jsonl", "train", step)

        def logged() -> bool:
            assert process.poll() is None, f"growctl ended first: {process.communicate()[0][-2000:]}"
            return arrived()

        wait_until(logged, f"step {step} of the second stage")


def finish(process: subprocess.Popen[str], code: int, seconds: float = WAIT_SECONDS) -> str:
    """What growctl prints until it ends. Fails unless it exits with `code` within `seconds`."""
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        if growctl := child_of(process.pid):
            os.kill(growctl, signal.SIGKILL)
        printed, _ = process.communicate()
        raise AssertionError(f"growctl did not end within {seconds:.0f} s: {printed[-2000:]}") from None
    assert process.returncode == code, f"exit code {process.returncode}: {printed[-2000:]}"
    return printed


def check_no_worker(runs_dir: Path) -> None:
    """Fails if a worker outlives its runner on any machine, by more than the time that it takes to notice."""
    wait_until(lambda: not workers_of(runs_dir), "every worker ends with its runner")


@pytest.fixture(scope="module")
def lab(training: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    require("apt-get install openssh-server pdsh openmpi-bin iproute2", *PROGRAMS, "pdsh", "mpirun", "ompi_info")
    folder = tmp_path_factory.mktemp("lab")
    with started_machines(folder, "node-1", "node-2") as machines:
        lab = Lab(folder, *machines)
        (folder / "hostfile").write_text("node-1 slots=1\nnode-2 slots=1\n")
        # The second stage is long enough to lose a machine in the middle of it.
        lab.schedule.write_text(SCHEDULE.replace("train_steps: 60", "train_steps: 300"))
        command = [sys.executable, "-m", "growctl.cli.app", "run", str(lab.schedule), "launch.devices=2"]
        output_of([*command, "--runs-dir", str(lab.undisturbed)], VARIABLES)
        yield lab


def test_a_machine_that_is_killed_and_returns_after_10_s_costs_one_restart(lab: Lab) -> None:
    runs_dir = lab.new_runs_dir("returns")
    process = lab.start(runs_dir)
    lab.train_until(process, runs_dir, 50)
    lab.second.kill()
    time.sleep(10)
    lab.second.start()
    printed = finish(process, code=0)
    assert "restarting it (1 of 3)" in printed, printed
    lab.check_same(runs_dir)


@pytest.mark.parametrize("runner", ["pdsh", "openmpi"])
def test_a_run_that_loses_a_machine_for_good_fails_soon_and_resumes_to_the_same_bits(lab: Lab, runner: str) -> None:
    runs_dir = lab.new_runs_dir(f"lost-{runner}")
    options = ("launch.max_restarts=1", "launch.hang_timeout=20")
    process = lab.start(runs_dir, *options, runner=runner)
    lab.train_until(process, runs_dir, 50)
    lab.second.cut_link()
    cut = time.monotonic()
    try:
        printed = finish(process, code=1, seconds=UNREACHABLE_SECONDS)
        seconds = time.monotonic() - cut
    finally:
        lab.second.start()
    assert "restarting it (1 of 1)" in printed, printed
    assert "Traceback" not in printed, printed
    [message] = re.findall("growctl: (.*)", printed)
    assert "No route to host" in message or "timed out" in message, message
    print(f"exit code 1 {seconds:.0f} s after its link went down: {message}")
    check_no_worker(runs_dir)
    finish(lab.start(runs_dir, *options, runner=runner), code=0)
    lab.check_same(runs_dir)
