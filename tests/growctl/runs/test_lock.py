"""Only one growctl process works on a run: lock messages, takeovers, and file systems without locks."""

import errno
import fcntl
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from growctl.runs.directory import RunError
from growctl.runs.lock import find_holder, hold
from growctl.runs_dir import LOCK
from stages.process.holder import Holder, read_holder
from tests.workers import REPOSITORY

HOLDS = """
import sys, time
from pathlib import Path
from growctl.runs.lock import hold
from tests.growctl.runs.test_lock import without_locks
if sys.argv[2] == "False":
    without_locks()
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def without_locks(code: int = errno.ENOLCK) -> None:
    """Makes every file system one that cannot lock."""

    def flock(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    fcntl.flock = flock


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fcntl.flock)


@pytest.mark.parametrize("locks", [True, False])
def test_a_second_growctl_reports_the_holder_and_takes_over_the_lock_of_a_dead_one(tmp_path: Path, locks: bool) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path), str(locks)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    if not locks:
        without_locks()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        when = r"\d{4}-\d\d-\d\d \d\d:\d\d"
        who = rf"in use by another growctl \(process {process.pid} on {socket.gethostname()} since {when}\)"
        with pytest.raises(RunError, match=who), hold(tmp_path):
            pass
        assert (find_holder(tmp_path) or Holder()).process == process.pid
    finally:
        process.kill()
        process.wait()
    assert find_holder(tmp_path) is None
    with hold(tmp_path):
        assert find_holder(tmp_path) == read_holder(tmp_path / LOCK)
        with pytest.raises(RunError, match=f"process {os.getpid()} on"), hold(tmp_path):
            pass
    assert find_holder(tmp_path) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK]


def test_without_locks_only_a_dead_process_on_this_machine_gives_its_run_up(tmp_path: Path) -> None:
    without_locks()
    me, path = Holder.me(), tmp_path / LOCK
    assert me.process_start is not None
    path.write_text(me.model_copy(update={"process_start": me.process_start - 1}).model_dump_json())
    with hold(tmp_path):
        """The process id was once another process's."""
    other = me.model_copy(update={"host": "node-9", "process": 1, "process_start": 1}).model_dump_json()
    path.write_text(other)
    named = rf"on node-9 .*according to {re.escape(str(path))}. This file system has no locks; .* remove that file"
    with pytest.raises(RunError, match=named), hold(tmp_path):
        pass
    assert path.read_text() == other
    path.unlink()
    with hold(tmp_path):
        """As the message suggested."""
    assert read_holder(path) == Holder()


def test_other_lock_errors_do_not_count_as_a_holder_and_a_failure_empties_the_lock_file(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), hold(tmp_path):
        assert read_holder(tmp_path / LOCK).process == os.getpid()
        _ = 1 / 0
    assert read_holder(tmp_path / LOCK) == Holder()
    without_locks(errno.EIO)
    with pytest.raises(OSError, match="Input/output error") as caught, hold(tmp_path):
        pass
    assert caught.value.filename == str(tmp_path / LOCK)


@pytest.mark.parametrize("text", ["", "[" * 10_000, '{"process": "1", "host": 3}', "\x00"])
def test_an_unreadable_lock_file_names_an_unknown_process(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    assert read_holder(tmp_path / LOCK) == Holder()
    with (tmp_path / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="an unknown process"), hold(tmp_path):
            pass
