"""The commands `growctl runs` and `growctl clean`."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from growctl.runs.clean import find_removable, section
from growctl.text.terminal import print_sections
from tests.growctl.runs import run_here
from tests.growctl.runs.stored import dataset, finished_run
from tests.workers import REPOSITORY

STEPS = {"step_00000020", "step_00000030", "step_00000043", "step_00000050"}


def steps_in(runs_dir: Path) -> set[str]:
    return {path.name for path in runs_dir.glob("*/stages/*/step_*")}


def test_clean_without_a_terminal_only_shows(tmp_path):
    finished_run(tmp_path)
    out, err = run_here("clean", "--runs-dir", tmp_path)
    assert "2 inner checkpoints" in out
    assert "this would free" in out
    assert "--trunks removes" in out
    assert out.endswith("nothing was removed; --yes removes it\n")
    assert err == ""
    assert steps_in(tmp_path) == STEPS


def test_clean_with_yes_removes_without_asking(tmp_path):
    finished_run(tmp_path)
    dataset(tmp_path, "unused")
    out, _ = run_here("clean", "--yes", "--runs-dir", tmp_path)
    assert "1 unused dataset" in out
    assert "removed 4 directories, which freed" in out
    assert steps_in(tmp_path) == {"step_00000043"}
    out, _ = run_here("clean", "--yes", "--runs-dir", tmp_path)
    assert "there is nothing to remove" in out


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "left"), [(b"y\n", {"step_00000043"}), (b"\n", STEPS)])
def test_clean_asks_on_a_terminal(tmp_path, answer, left):
    finished_run(tmp_path)
    mine, theirs = pty.openpty()
    os.write(mine, answer)
    command = [sys.executable, "-m", "growctl.cli.app", "clean", "--runs-dir", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "TERM": "dumb"}
    process = subprocess.run(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    said = os.read(mine, 65536).decode()
    os.close(mine)
    assert process.returncode == 0
    assert "Remove this? [y/N]" in said
    assert steps_in(tmp_path) == left


def test_both_commands_print_one_json_document(tmp_path):
    made = finished_run(tmp_path)
    listed, err = run_here("runs", "--json", "--runs-dir", tmp_path)
    shown, _ = run_here("clean", "--json", "--runs-dir", tmp_path)
    assert err == ""
    assert steps_in(tmp_path) == STEPS
    removed, _ = run_here("clean", "--json", "--yes", "--runs-dir", tmp_path)
    [entry] = json.loads(listed)["runs"]
    assert (entry["name"], entry["state"], entry["directory"]) == ("tiny", "finished", str(made.directory))
    plan, done = json.loads(shown), json.loads(removed)
    assert plan["removed"] is None
    assert [item["path"] for item in plan["remove"]] == done["removed"]["paths"]
    assert plan["freed_bytes"] == done["freed_bytes"] == done["removed"]["freed_bytes"] > 0


@pytest.mark.parametrize("command", ["runs", "clean"])
def test_unknown_names_and_directories_give_one_message_and_exit_code_2(tmp_path, command):
    finished_run(tmp_path)
    _, err = run_here(command, "tinny", "--runs-dir", tmp_path, expect=2)
    assert err == f"growctl: no run 'tinny' in {tmp_path}; the nearest is tiny\n"
    _, err = run_here(command, "--runs-dir", tmp_path / "gone", expect=2)
    assert (
        err
        == f"growctl: {tmp_path / 'gone'} is not a directory; give the directory that holds the runs with --runs-dir\n"
    )


def test_clean_gives_each_reason_for_keeping_something_once(tmp_path):
    made = finished_run(tmp_path)
    for path in made.stage("0-small").glob("step_*"):
        path.rename(path.with_name(f"broken-{path.name}"))
    out, _ = run_here("clean", "--runs-dir", tmp_path)
    first = made.stage("0-small") / "broken-step_00000020"
    words = " ".join(out.split())
    assert f"kept: {first} and 1 more: it was set aside; look at it, and remove it yourself" in words


def test_the_table_of_clean_has_80_columns(tmp_path):
    ladder, kind = "a-ladder-with-quite-a-long-name", "transformer-scratch"
    finished_run(tmp_path, ladder)
    finished_run(tmp_path, f"{ladder}-control-{kind}-0.5", control=kind)
    out = io.StringIO()
    print_sections([section(find_removable(tmp_path))], Console(file=out, width=80, highlight=False))
    table = out.getvalue().partition("this would free")[0]
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80
