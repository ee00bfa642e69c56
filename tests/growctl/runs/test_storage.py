"""`growctl runs` measures runs by their files, each of which counts once; `growctl clean` asks before it removes."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from growctl.runs.storage import measure_storage
from tests.growctl.runs import run_here
from tests.growctl.runs.stored import WEIGHTS, dataset, finished_run, linked_copy
from tests.workers import REPOSITORY

STEPS = {"step_00000020", "step_00000030", "step_00000043", "step_00000050"}


def steps_in(runs_dir: Path) -> set[str]:
    return {path.name for path in runs_dir.glob("*/stages/*/step_*")}


def test_a_file_counts_once_in_a_run_and_is_freed_only_if_no_other_run_shares_it(tmp_path):
    made = finished_run(tmp_path)
    [before] = measure_storage(tmp_path).runs
    linked_copy(made.stage("0-small") / "final", made.stage("1-large") / "initial")
    [after] = measure_storage(tmp_path).runs
    assert before.bytes == after.bytes == after.freed_bytes > 6 * WEIGHTS

    sharer = finished_run(tmp_path, "sharer")
    linked_copy(made.stage("0-small") / "final", sharer.stage("0-small") / "reused")
    measured = measure_storage(tmp_path)
    shared, of_the_other = [run.bytes - run.freed_bytes for run in measured.runs]
    assert WEIGHTS < shared == of_the_other
    assert measured.bytes == sum(run.bytes for run in measured.runs) - shared


def test_datasets_are_listed_with_the_runs_that_use_them(tmp_path):
    finished_run(tmp_path)
    dataset(tmp_path, "data")
    dataset(tmp_path, "unused")
    assert {each.name: each.used_by for each in measure_storage(tmp_path).datasets} == {"data": ["tiny"], "unused": []}
    assert not measure_storage(tmp_path, ["tiny"]).datasets


def test_clean_only_shows_until_it_is_told_to_remove(tmp_path):
    made = finished_run(tmp_path)
    dataset(tmp_path, "unused")
    for path in made.stage("0-small").glob("step_*"):
        path.rename(path.with_name(f"broken-{path.name}"))
    out, err = run_here("clean", "--runs-dir", tmp_path)
    assert (err, out.endswith("nothing was removed; --yes removes it\n")) == ("", True)
    assert f"kept: {made.stage('0-small')}/broken-step_00000020 and 1 more: it was set aside" in " ".join(out.split())
    assert steps_in(tmp_path) == {"step_00000043", "step_00000050"}
    assert "removed 2 directories, which freed" in run_here("clean", "--yes", "--runs-dir", tmp_path)[0]
    assert steps_in(tmp_path) == {"step_00000043"}
    assert "there is nothing to remove" in run_here("clean", "--yes", "--runs-dir", tmp_path)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [(b"y\n", {"step_00000043"}), (b"\n", STEPS)], ids=["yes", "enter"])
def test_clean_asks_on_a_terminal(tmp_path, answer, left):
    finished_run(tmp_path)
    mine, theirs = pty.openpty()
    os.write(mine, answer)
    command = [sys.executable, "-m", "growctl.cli.app", "clean", "--runs-dir", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TERM": "dumb"}
    subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    said = os.read(mine, 65536).decode()
    os.close(mine)
    assert "Remove this? [y/N]" in said
    assert steps_in(tmp_path) == left
