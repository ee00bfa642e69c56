"""stages/corpus/prepare.py in real processes: output, kills, and two at once."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from stages.corpus import corpus as corpus_module
from stages.corpus.prepare import prepare
from stages.data.dataset import verify_dataset
from tests.stages.corpus.small_source import spec_of
from tests.workers import HANG_SECONDS, REPOSITORY

SCRIPT = """
import multiprocessing, sys, time
from pathlib import Path
from stages.corpus import corpus as module
from stages.corpus.prepare import DataSpec, prepare
from stages.corpus.tasks import Progress

module.SHARD_BYTES = 900
source, datasets, log, workers = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
spec = DataSpec(source=source, vocab_size=300, validation_fraction=0.2, workers=workers)
if __name__ == "__main__":
"""


def start(folder: Path, tmp_path: Path, body: str, *, workers: int, log: str = "log") -> subprocess.Popen[str]:
    script = tmp_path / f"{log}.py"
    script.write_text(SCRIPT + textwrap.indent(textwrap.dedent(body), "    "))
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), str(tmp_path / "datasets"), str(tmp_path / log), str(workers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_preparation_killed_ten_times_ends_in_the_same_dataset(folder, tmp_path, monkeypatch):
    """Kills a process, which the next one goes on from, at its 15th to 35th sync or renaming of a file."""
    body = """
        import os, random, signal
        module.SHARD_BYTES = 300
        spec = spec.model_copy(update={"shuffle_seed": 5})
        for attempt in range(10):
            if pid := os.fork():
                assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
                assert not list(datasets.glob("[!.]*/")), "nothing looks finished"
                continue
            left = random.Random(attempt).randint(15, 35)
            def dying(real):
                def call(*arguments):
                    global left
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*arguments)
                return call
            for name in ("fsync", "rename", "replace"):
                setattr(os, name, dying(getattr(os, name)))
            prepare(spec, datasets, progress=Progress(log))
            os._exit(0)
        print(prepare(spec, datasets, progress=Progress(log)))
    """
    out, err = start(folder, tmp_path, body, workers=1).communicate(timeout=HANG_SECONDS)
    assert err == ""
    dataset = Path(out.strip())
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 300)
    unbroken = prepare(spec_of(folder, shuffle_seed=5), tmp_path / "unbroken")
    assert verify_dataset(dataset).fingerprint == verify_dataset(unbroken).fingerprint
    assert sorted(path.name for path in dataset.rglob("*")) == sorted(path.name for path in unbroken.rglob("*"))
    resumed = [int(number) for number in re.findall(r"resuming: (\d+) part", (tmp_path / "log").read_text())]
    assert len(resumed) >= 6
    assert resumed == sorted(resumed), "finished work is not done again"
    assert not [path for path in (tmp_path / "datasets").iterdir() if path.is_dir() and path != dataset]


@pytest.mark.slow
def test_two_processes_at_once_prepare_one_dataset_and_their_workers_print_nothing(folder, tmp_path):
    body = """
        def together(message, fraction):
            other = log.with_name("second" if log.name == "first" else "first")
            while message == "tokenising" and not (other.exists() and "waiting for" in other.read_text()):
                time.sleep(0.01)
        print(prepare(spec, datasets, progress=Progress(log, together)))
        assert "torch" not in sys.modules
    """
    processes = [start(folder, tmp_path, body, workers=2, log=name) for name in ("first", "second")]
    [first, *same] = {(*process.communicate(timeout=HANG_SECONDS), process.returncode) for process in processes}
    dataset = verify_dataset(Path(first[0].strip()))
    assert (first, same) == ((f"{first[0].strip()}\n", "", 0), [])
    assert dataset.splits["train"].num_documents > 40
    logs = "".join((tmp_path / name).read_text() for name in ("first", "second"))
    assert logs.count("waiting for another process that is preparing the same dataset") == 1
    assert logs.count("prepared texts-") == 1


@pytest.mark.slow
def test_a_killed_process_leaves_no_dataset_and_no_workers_and_the_next_one_cleans_up(folder, tmp_path, monkeypatch):
    body = """
        def hang(message, fraction):
            if message == "tokenising" and fraction:
                print(*[child.pid for child in multiprocessing.active_children()], flush=True)
                time.sleep(600)
        prepare(spec, datasets, progress=Progress(log, hang))
    """
    process = start(folder, tmp_path, body, workers=2)
    assert process.stdout
    children = [int(pid) for pid in process.stdout.readline().split()]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=HANG_SECONDS)
    assert len(children) == 2
    deadline = time.monotonic() + HANG_SECONDS
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < deadline, "the workers outlive the process that they work for"
        time.sleep(0.05)
    [left] = (path for path in (tmp_path / "datasets").iterdir() if path.is_dir())
    assert left.name.startswith("."), "nothing under a dataset's own name"
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)
    dataset = prepare(spec_of(folder), tmp_path / "datasets")
    verify_dataset(dataset)
    assert [path for path in (tmp_path / "datasets").iterdir() if path.is_dir()] == [dataset]
