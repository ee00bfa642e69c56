"""Workers end when their lifeline does, and not before."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from stages.process.lifeline import BEAT_SECONDS, STDIN, VARIABLE, Lifeline, cut_lifeline, watch
from tests.workers import HANG_SECONDS

WORKER = """
import time
from stages.process.lifeline import end_with_runner
end_with_runner()
print("working", flush=True)
time.sleep(3600)
"""


def worker(**environment: str) -> subprocess.Popen[str]:
    """A process that works for an hour unless its lifeline ends it. Returns once the process is working."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "working\n"
    return process


def test_a_worker_with_standard_input_as_lifeline_ends_with_it():
    process = worker(**{VARIABLE: STDIN})
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 143


@pytest.mark.slow
def test_a_worker_with_a_file_ends_when_the_file_is_removed_and_needs_no_standard_input(tmp_path):
    lifeline = Lifeline(tmp_path / ".lifeline.1")
    lifeline.start()
    process = worker(**{VARIABLE: str(tmp_path / ".lifeline.1")})
    assert process.stdin
    process.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    lifeline.end()
    assert process.wait(HANG_SECONDS) == 1


def test_a_worker_without_a_lifeline_runs_on_and_in_a_slurm_job_it_leaves_signals_to_the_runner(tmp_path):
    (tmp_path / "alive").touch()
    alone, in_job = worker(), worker(**{VARIABLE: str(tmp_path / "alive"), "SLURM_STEP_ID": "0"})
    for number in (signal.SIGTERM, signal.SIGUSR2):
        in_job.send_signal(number)
    for process in (in_job, alone):
        process.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()
        process.wait()


class Time:
    """A clock that only sleeping advances, with events at given times."""

    def __init__(self, **events: object) -> None:
        self.now = 0.0
        self.events = {int(when.removeprefix("at_")): event for when, event in events.items()}

    def sleep(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1
            if event := self.events.get(int(self.now)):
                event()  # type: ignore[operator]

    def watch(self, path: Path) -> tuple[int, float]:
        code = watch(path, patience=10, look=1, clock=lambda: self.now, sleep=self.sleep)
        return code, self.now


def test_a_worker_ends_when_its_own_clock_says_that_the_file_stopped_changing(tmp_path):
    path = tmp_path / "alive"
    path.write_text("1")
    assert Time().watch(path) == (143, 10)
    assert Time(at_7=lambda: path.write_text("2")).watch(path) == (143, 17)
    os.utime(path, (0, 0))  # another machine's clock does not matter
    assert Time(at_7=lambda: path.write_text("3"), at_12=path.unlink).watch(path) == (1, 12)
    assert Time().watch(path) == (1, 0)


def test_a_short_outage_of_the_file_server_ends_no_worker(tmp_path, monkeypatch):
    path = tmp_path / "alive"
    path.write_text("1")
    reads = ["1", OSError(116, "Stale file handle"), "1", FileNotFoundError()]
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=reads))
    assert Time().watch(path) == (1, 3)


def test_the_runner_rewrites_the_file_in_time_but_never_restores_a_removed_one(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    path = tmp_path / ".lifeline.2"
    (tmp_path / ".lifeline.1").touch()
    lifeline = Lifeline(path)
    lifeline.start()
    assert not (tmp_path / ".lifeline.1").exists()
    contents = []
    for _ in range(3):
        lifeline.beat()
        contents.append(path.read_text())
        now[0] += BEAT_SECONDS
    assert contents == ["1", "2", "3"]
    monkeypatch.setenv(VARIABLE, str(path))
    cut_lifeline()
    lifeline.beat()
    assert not path.exists()
    lifeline.end()
