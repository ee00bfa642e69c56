"""The injected faults strike at the chosen point, once, and nowhere else."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reliability.faults.sitecustomize import HERE, VARIABLE
from tests.workers import HANG_SECONDS, REPOSITORY

RENAME = "import os; open('a', 'w').close(); os.rename('a', 'b')"


@pytest.fixture
def python(tmp_path):
    """Runs a program in `tmp_path/work` under faults, and returns the finished process."""
    (tmp_path / "marks").mkdir()
    (tmp_path / "work").mkdir()

    def run(program: str, *faults: dict[str, object], path: Path | None = None) -> subprocess.CompletedProcess[str]:
        told = {"folder": str(tmp_path / "marks"), "faults": list(faults)}
        folders = [HERE, str(REPOSITORY), *([str(path)] if path else [])]
        environment = os.environ | {"PYTHONPATH": ":".join(folders), VARIABLE: json.dumps(told)}
        command, work = [sys.executable, "-c", program], tmp_path / "work"
        return subprocess.run(
            command, env=environment, cwd=work, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
        )

    return run


def test_a_kill_strikes_before_or_after_the_nth_call_that_matches_once_for_all_processes(python, tmp_path):
    program = "import os\nfor i in range(9): os.mkdir(f'no{i}'); os.mkdir(f'yes{i}')"
    for side, last in (("before", "yes1"), ("after", "yes2")):
        fault = {"name": side, "at": "os:mkdir", "side": side, "matching": "yes", "nth": 3, "do": "SIGKILL"}
        assert python(program, fault).returncode == -9
        assert sorted(os.listdir(tmp_path / "work"))[-1] == last
        assert json.loads((tmp_path / "marks" / side).read_text())["call"][0] == "yes2"
        assert python("import os; os.mkdir('yes'); os.mkdir('yes3'); os.mkdir('yes4')", fault).returncode == 0
        shutil.rmtree(tmp_path / "work")
        (tmp_path / "work").mkdir()


def test_functions_and_methods_are_wrapped_wherever_they_are_used(python):
    method = {"name": "m", "at": "stages.metrics:MetricsReader.__init__", "matching": "later", "do": "EIO"}
    named = {"name": "n", "at": "stages.checkpoint.files:hash_file", "do": "ENOSPC"}
    program = "from pathlib import Path; from stages.metrics import read_metrics as r; r(Path('now')); r(Path('later'))"
    assert "OSError: [Errno 5] Input/output error" in python(program, method, named).stderr
    program = "from stages.checkpoint.manifest import manifest_hash; from pathlib import Path; manifest_hash(Path())"
    assert "OSError: [Errno 28] No space left on device" in python(program, method, named).stderr


def test_any_file_change_can_be_a_point(python, tmp_path):
    fault = {"name": "f", "at": "files", "matching": str(tmp_path / "work"), "nth": 2, "do": "SIGKILL"}
    program = (
        f"from pathlib import Path; p = Path({str(tmp_path / 'work')!r}); (p / 'a').touch(); p.joinpath('b').mkdir()"
    )
    assert python(program, fault).returncode == -9
    assert os.listdir(tmp_path / "work") == ["a"]


def test_a_torn_file_is_cut_to_half(python, tmp_path):
    fault = {"name": "f", "at": "os:replace", "side": "after", "tear": True, "matching": "b$", "do": "SIGKILL"}
    python("import os; from pathlib import Path; Path('a').write_bytes(b'12345678'); os.replace('a', 'b')", fault)
    assert (tmp_path / "work/b").read_bytes() == b"1234"


def test_a_slow_call_a_stall_and_a_clock_that_goes_back(python):
    slow = {"name": "slow", "at": "os:mkdir", "do": "sleep", "seconds": 0.5}
    clock = {"name": "clock", "at": "os:rmdir", "do": "clock", "seconds": 3600.0}
    program = (
        "import os, time; a = time.time(); os.mkdir('d'); print(time.time() - a); os.rmdir('d'); print(time.time() - a)"
    )
    before, after = map(float, python(program, slow, clock).stdout.split())
    assert before >= 0.5
    assert after < before - 3000
    started = time.monotonic()
    stall = {"name": "stall", "at": "os:mkdir", "do": "stall"}
    program = "import os, threading; threading.Timer(1, os._exit, (7,)).start(); os.mkdir('d')"
    assert python(program, stall).returncode == 7
    assert time.monotonic() - started >= 1


def test_other_processes_are_left_alone_and_a_hidden_sitecustomize_still_runs(python, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/sitecustomize.py").write_text("print('the other one')")
    fault = {"name": "f", "at": "os:rename", "process": "rank", "do": "SIGKILL"}
    ended = python(RENAME, fault, path=tmp_path / "other")
    assert (ended.returncode, ended.stdout) == (0, "the other one\n")
    assert os.listdir(tmp_path / "marks") == []
