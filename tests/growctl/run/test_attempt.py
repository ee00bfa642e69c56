"""An attempt at a stage with fake workers: how it ends, and the outcome it reports."""

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from growctl.launch.machines import Launch
from growctl.run import signals as stop_signals
from growctl.run.attempt import Attempt, Outcome, StageHistory, pause_after
from stages.metrics import Record
from stages.stage_dir import StagePaths
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec
from tests.stages.test_metrics import START
from tests.workers import HANG_SECONDS, REPOSITORY

WORKER = """
import os, signal, sys, time
from pathlib import Path
from stages.process.lifeline import end_with_runner, listen_for_save_requests, save_requests
from stages.metrics import MetricsWriter
from stages.process.watchdog import Watchdog
from stages.stage_dir import StagePaths

stage, rank = Path(sys.argv[1]), 0
metrics = MetricsWriter(stage / "metrics.jsonl", 1)
end_with_runner()
watchdog = Watchdog(StagePaths(stage).stack_file(1, rank), {hang_seconds})
listen_for_save_requests()

def start():
    metrics.write("start", 0, 0.0, **{start_values})

def train_until_asked():
    while not save_requests:
        watchdog.beat()
        time.sleep(0.01)

def save():
    metrics.write("saved", 7, 1.0, path="step_00000007")

"""


@pytest.fixture
def signals():
    """Installs growctl's signal handlers for the test."""
    before = {number: signal.getsignal(number) for number in stop_signals.STOPS}
    stop_signals.install_handlers()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Stage:
    """A stage directory, and an attempt whose workers run `code`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[str] = []
        self.records: list[Record] = []

    def attempt(
        self, code: str, grace: float = HANG_SECONDS, hang_seconds: float = 600.0, elsewhere: bool = False
    ) -> Outcome:
        """Makes the attempt. `elsewhere`: its workers are on other machines, and have a file as their lifeline."""
        spec = small_spec(small_config(), directory=str(self.directory), hang_seconds=hang_seconds)
        worker = WORKER.replace("{hang_seconds}", str(hang_seconds)).replace("{start_values}", repr(START)) + code
        command = [sys.executable, "-c", worker, str(self.directory)]
        alive = StagePaths(self.directory).lifeline(1) if elsewhere else None
        environment = {"PYTHONPATH": str(REPOSITORY), "GROWCTL_LIFELINE": str(alive or "stdin")}
        launch = Launch(command, environment, lifeline=alive)
        history = StageHistory(self.directory / "metrics.jsonl").read_to_the_end()
        return Attempt(spec, launch, history, grace, self.records.extend, self.said.append).run()

    def signal_once_begun(self, *numbers: signal.Signals, pause: float = 0.0) -> None:
        """Sends this process the signals after a worker has begun to train."""

        def send() -> None:
            while not self.records:
                time.sleep(0.01)
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(pause)

        threading.Thread(target=send, daemon=True).start()


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


INT, TERM, USR1, USR2 = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
BY_CLUSTER = "os.kill(os.getpid(), signal.SIGUSR1); "
TWICE = "[os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)]; time.sleep(0.1); "
ASKED = "stopping: the workers save first; send the signal again to stop at once"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "by_cluster", "again", "elsewhere", "exit_code"),
    [
        pytest.param(INT, "", "", False, 130, id="SIGINT"),
        pytest.param(TERM, "", "", False, 143, id="SIGTERM"),
        pytest.param(USR1, "", "", False, 143, id="SIGUSR1"),
        pytest.param(USR2, "", "", False, 143, id="SIGUSR2"),
        pytest.param(TERM, "", "", True, 143, id="to workers on other machines, through their lifeline"),
        pytest.param(TERM, "", TWICE, False, 143, id="and twice more to the workers"),
        pytest.param(None, BY_CLUSTER, "", False, 143, id="from the cluster to the workers"),
        pytest.param(None, BY_CLUSTER, TWICE, False, 143, id="from the cluster to the workers, three times"),
    ],
)
def test_on_a_signal_workers_save_before_growctl_exits(signals, stage, sent, by_cluster, again, elsewhere, exit_code):
    if sent:
        stage.signal_once_begun(sent)
    with pytest.raises(stop_signals.Stopped) as stopped:
        stage.attempt(f"start(); {by_cluster}train_until_asked(); {again}time.sleep(0.3); save()", elsewhere=elsewhere)
    assert stopped.value.exit_code == exit_code
    assert [record["event"] for record in stage.records] == ["start", "saved"]
    assert stage.said == ([ASKED] if sent else [])
    assert {path.name for path in stage.directory.iterdir()} == {"metrics.jsonl", "log.txt"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "grace", "said"),
    [([TERM, TERM], HANG_SECONDS, ASKED), ([TERM], 0.5, "the workers have not saved within")],
    ids=["a second signal", "the end of the grace period"],
)
def test_workers_that_do_not_save_are_killed(signals, stage, sent, grace, said):
    stage.signal_once_begun(*sent, pause=0.5)
    with pytest.raises(stop_signals.Stopped):
        stage.attempt("start(); train_until_asked(); time.sleep(600); save()", grace=grace)
    assert [record["event"] for record in stage.records] == ["start"]
    assert stage.said[-1].startswith(said)


def test_a_signal_before_the_workers_start_training_stops_without_saving(signals, stage):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(stop_signals.Stopped):
        stage.attempt("time.sleep(600)", grace=600)
    assert stage.said == []


HANG_UP = """
import signal
from growctl.run.signals import Stopped, install_handlers, noted
signal.signal(signal.SIGHUP, signal.{before})
install_handlers()
try:
    with noted() as note:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        print(note.number, flush=True)
except Stopped as stop:
    print(stop.exit_code, flush=True)
"""


@pytest.mark.parametrize(("before", "noted"), [("SIG_DFL", "1\n143\n"), ("SIG_IGN", "None\n")])
def test_hang_ups_are_noted_once_but_left_alone_under_nohup(tmp_path, before, noted):
    command = [sys.executable, "-c", HANG_UP.format(before=before)]
    with (tmp_path / "nohup.out").open("w") as output:
        subprocess.run(command, cwd=REPOSITORY, stdout=output, check=True)
    assert (tmp_path / "nohup.out").read_text() == noted


@pytest.mark.parametrize("opened", [pty.openpty, os.pipe])
def test_after_a_hang_up_nothing_is_written_to_a_terminal_or_pipe_that_is_gone(opened):
    ours, its = opened()
    os.close(ours)
    subprocess.run([sys.executable, "-c", HANG_UP.format(before="SIG_DFL")], cwd=REPOSITORY, stdout=its, check=True)
    os.close(its)


@pytest.mark.slow
def test_workers_that_die_count_as_crashed_and_reported_errors_as_failed(stage):
    """An exit code of 140 from srun is the number of its error, modulo 256, and not 128 + signal 12."""
    assert stage.attempt("raise SystemExit('no GPU here')") == Outcome("failed", "no GPU here")
    said = "Task launch for StepId=1.1 failed on node node1: Socket timed out on send/recv operation"
    srun = f"print('srun: error: {said}', 'srun: Job step aborted', sep=chr(10), flush=True); sys.exit(140)"
    assert stage.attempt(srun) == Outcome("crashed", said)
    assert stage.attempt("start()") == Outcome("ended")
    crashed = stage.attempt("start(); os.kill(os.getpid(), signal.SIGKILL)")
    assert crashed.kind == "crashed"
    assert "ended by signal 9" in crashed.reason
    assert stage.attempt("start(); 1 / 0") == Outcome("crashed", "ZeroDivisionError: division by zero")
    assert stage.attempt("start(); sys.exit('growctl: no such text')") == Outcome("failed", "no such text")
    others_had_begun = stage.attempt("raise SystemExit('the machine is not back yet')")
    assert others_had_begun == Outcome("crashed", "the machine is not back yet")


@pytest.fixture
def looked_at_often(monkeypatch):
    """Makes the runner poll the workers' files more often, and wait less for the stack trace of the only rank."""
    monkeypatch.setattr("growctl.run.attempt.STALL_POLL_SECONDS", 0.1)
    monkeypatch.setattr("growctl.run.attempt.SETTLE_SECONDS", 0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("looked_at_often")
@pytest.mark.parametrize(
    ("code", "where"),
    [
        ("def stuck_here():\n    time.sleep(600)\nstart()\nstuck_here()", "rank 0: stuck_here (<string>:"),
        ("start(); os.kill(os.getpid(), signal.SIGSTOP)", "rank 0: no answer"),
    ],
    ids=["stalled", "stopped"],
)
def test_workers_that_do_nothing_are_detected_and_it_is_said_where_they_hang(stage, code, where):
    hung = stage.attempt(code, hang_seconds=1.0)
    assert hung.kind == "hung"
    assert where in hung.reason
    traces = [path.read_text() for path in stage.directory.glob("stacks/attempt-1-rank-0.txt")]
    assert ["stuck_here" in trace for trace in traces] == ([True] if "stuck_here" in code else [])


@pytest.mark.usefixtures("looked_at_often")
def test_workers_do_not_wait_for_a_machine_that_ssh_does_not_reach(stage):
    """The other ranks would wait for it until torch gives up after half an hour."""
    code = """
print("node-2: ssh: connect to host node-2 port 22: No route to host")
print("pdsh@node-1: node-2: ssh exited with exit code 255", flush=True)
while StagePaths(stage).lifeline(1).exists():
    time.sleep(0.01)
sys.exit(255)
"""
    kind, reason = stage.attempt(code, elsewhere=True)
    assert kind == "failed"
    assert reason.startswith("ssh to node-2 ended with exit code 255 (ssh: connect to host node-2 port 22: No ro")


def test_the_pauses_before_restarts_grow_to_a_minute():
    assert [pause_after(failures) for failures in (1, 2, 3, 1000)] == [1, 10, 60, 60]
