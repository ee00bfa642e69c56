"""Names from any input stay inside the runs directory and never reach a shell unquoted.

Each value is refused in one message, or arrives unchanged and as one word.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from growctl.cli import report
from growctl.cli.dry_run import _launch
from growctl.ladder.controls import plan_controls
from growctl.launch.hostfile import hostfile_machines, read_hostfile
from growctl.launch.local import Local
from growctl.launch.machines import Devices, Launch, LaunchError, plain_path
from growctl.launch.slurm import check_slurm
from growctl.launch.workers import Workers
from growctl.run.requests import LadderRequest
from growctl.run.slurm_jobs import plan_jobs
from growctl.runs.find import RunNotFoundError, find_runs
from growctl.runs.status import find_status
from growctl.schedule.errors import ScheduleError
from stages.corpus.corpus import plain_name
from tests.growctl.schedules import BASE, changed, parse
from tests.reliability.hostile import HOSTILE, TEXTS, record_run
from tests.workers import HANG_SECONDS, REPOSITORY

DUMP = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['DUMP'], 'w'))"
"""A program that writes its arguments and environment to the file $DUMP."""

OPTIONS = ("partition", "account", "qos", "constraint")
quick = settings(max_examples=60)


def is_word(text: str) -> bool:
    """Whether every shell takes a text as one word, and no program takes it as an option."""
    return shlex.quote(text) == text and text[0] not in "-~"


def is_plain(name: str) -> bool:
    """Whether a name is a single visible file name that every shell and program takes literally."""
    return is_word(name) and name[0] != "." and "/" not in name and len(name) < 256


def refusal(call: Callable[[], object]) -> str | None:
    """The message if a schedule or a command from it is rejected; None if it is accepted."""
    try:
        call()
    except (ScheduleError, LaunchError) as error:
        return str(error)
    return None


@quick
@given(name=TEXTS, where=st.sampled_from(["name", "stages.0.name"]), controls=st.sampled_from([[], BASE["controls"]]))
@example(name="a\n", where="name", controls=[]).via("a pattern's $ may overlook the end of the line")
def test_a_name_in_a_schedule_is_plain_or_rejected(name, where, controls):
    if said := refusal(lambda: parse(changed({where: name, "controls": controls}))):
        assert where in said
        assert said.isprintable()
        return
    schedule = parse(changed({where: name, "controls": controls}))
    assert name in (schedule.name, schedule.stages[0].name)
    assert is_plain(name)
    assert all(is_plain(control.name) for control in plan_controls(schedule, []))


def test_the_longest_run_names_still_give_valid_control_names():
    stages = [stage | {"name": stage["name"] + "b" * (100 - len(stage["name"]))} for stage in BASE["stages"]]
    controls = [{"kind": "best-scratch", "budgets": [0.123456], "peaks": [1, 0.0123]}]
    schedule = parse(changed({"name": "a" * 100, "stages": stages, "controls": controls}))
    assert (names := [control.name for control in plan_controls(schedule, [])])
    assert all(map(is_plain, names))
    assert [parse(changed({"name": name, "controls": []})).name for name in names] == names
    assert refusal(lambda: parse(changed({"stages.0.name": "a" * 101})))


@quick
@given(source=TEXTS)
def test_every_source_gives_a_plain_name_of_a_dataset(source):
    assert is_plain(name := plain_name(f"folder/{source}"))
    assert len(name) <= 100


NO_NUL = [text for text in HOSTILE if "\0" not in text]
VALUES = {f"V{number}": value for number, value in enumerate(NO_NUL)}
"""An environment with every hostile value."""


def assert_told(dump: Path, arguments: list[str], environment: dict[str, str]) -> None:
    """Asserts that `DUMP` got these arguments, and at least this environment."""
    found, variables = json.loads(dump.read_text())
    assert found == arguments
    assert variables.items() >= environment.items()


def test_the_workers_environment_arrives_unchanged_or_is_rejected(tmp_path):
    environment = parse(changed({"launch.environment": VALUES | {"DUMP": str(tmp_path / "dump")}})).launch.environment
    [started] = [Local(Devices(1, "cpu", False), environment=environment).launch(tmp_path / "spec.json", 1, 1)]
    with Workers(Launch([sys.executable, "-c", DUMP], started.environment), tmp_path / "log") as workers:
        workers.wait(HANG_SECONDS)
    assert_told(tmp_path / "dump", [], VALUES)
    not_names = [key for key in HOSTILE if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", key, re.ASCII)]
    for key, value in [("A", "a\0b"), *((key, "a") for key in not_names)]:
        with pytest.raises(ScheduleError, match=r"launch\.environment"):
            parse(changed({"launch.environment": {key: value}}))


def test_on_a_hostfiles_machines_the_environment_travels_in_a_private_file(tmp_path):
    (tmp_path / "hosts").write_text("one slots=1\ntwo slots=1\n")
    (tmp_path / "stand_in.py").write_text(DUMP)
    environment = VALUES | {"DUMP": str(tmp_path / "dump"), "PYTHONPATH": str(tmp_path)}
    block = {"cluster": "hostfile", "nodes": 2, "environment": environment, "hostfile.path": str(tmp_path / "hosts")}
    machines = hostfile_machines(parse(changed({f"launch.{key}": value for key, value in block.items()})).launch, 2)
    launch = machines.launch(tmp_path / "spec.json", 2, 1)
    assert shlex.join(launch.command) == " ".join(launch.command)
    with Workers(Launch([sys.executable, "-c", ""], {}, files=launch.files), tmp_path / "log") as workers:
        workers.wait(HANG_SECONDS)
    file = tmp_path / "environment.json"
    assert file.stat().st_mode & 0o777 == 0o600
    command = [sys.executable, "-m", "growctl.launch.start_on_host", str(file), "stand_in", *NO_NUL]
    subprocess.run(command, check=True, timeout=HANG_SECONDS, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
    assert_told(tmp_path / "dump", NO_NUL, environment)


def test_the_commands_of_a_dry_run_mean_the_same_to_a_shell(tmp_path):
    environment = VALUES | {"DUMP": str(tmp_path / "dump")}
    launch = Launch([sys.executable, "-c", DUMP, *NO_NUL], environment, directory=tmp_path)
    subprocess.run(["bash", "-c", "\n".join(_launch(launch))], check=True, timeout=HANG_SECONDS)
    assert_told(tmp_path / "dump", NO_NUL, environment)
    assert not (tmp_path / "x").exists()


def script_of(folder: Path, slurm: dict[str, object]) -> str:
    """The job script of a run with a single job."""
    schedule = parse(changed({"launch": {"cluster": "slurm", "devices": 1, "slurm": slurm}}))
    check_slurm(schedule.launch)
    request = LadderRequest.of(schedule, "s.yaml", folder, None, with_controls=False)
    executor = plan_jobs(request, [request.ladder])[0].executor(folder / "slurm", None)
    return executor._make_submission_file_text(executor._submitit_command_str, "")


@quick
@given(value=TEXTS, key=st.sampled_from([*OPTIONS, "options"]))
def test_an_sbatch_option_is_one_word_on_one_line_or_rejected(tmp_path, value, key):
    option = "reservation" if key == "options" else key
    slurm: dict[str, object] = {key: {option: value} if key == "options" else value}
    if said := refusal(lambda: script_of(tmp_path, slurm)):
        assert not value.isprintable() or not value
        assert f"launch.slurm.{key}" in said
        return
    added = set(script_of(tmp_path, slurm).splitlines()) - set(script_of(tmp_path, {}).splitlines())
    assert [shlex.split(line.removeprefix("#SBATCH ")) for line in added] == [[f"--{option}={value}"]]


def test_a_job_script_starts_python_from_any_path_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "it's $(touch x) here" / "python"
    python.parent.mkdir()
    python.write_text(f"#!{sys.executable}\n{DUMP}\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    script = script_of(tmp_path, dict.fromkeys(OPTIONS, "'; touch x; $(touch x) `touch x`"))
    environment = os.environ | {"DUMP": str(tmp_path / "dump")}
    subprocess.run(["bash", "-c", script], check=True, timeout=HANG_SECONDS, env=environment)
    assert_told(tmp_path / "dump", ["-u", "-m", "submitit.core._submit", str(tmp_path / "slurm")], {})
    assert not (tmp_path / "x").exists()


@quick
@given(host=TEXTS)
def test_a_host_is_one_word_and_not_an_option_or_rejected(tmp_path, host):
    hosts, good = tmp_path / "hosts", tmp_path / "good"
    hosts.write_text(f"{host} slots=2\n", newline="")
    if not refusal(lambda: read_hostfile(hosts)):
        assert list(read_hostfile(hosts)) == [host.strip()]
        assert is_word(host.strip())
    good.write_text("one slots=2\n")
    block = {"cluster": "hostfile", "hostfile": {"path": str(good), "master_address": host}}

    def command() -> list[str]:
        return hostfile_machines(parse(changed({"launch": block})).launch, 1).launch(tmp_path / "s.json", 1, 1).command

    if said := refusal(command):
        assert "launch.hostfile.master_address" in said
    else:
        assert is_word(host)
        assert command().count(host) == 1


@quick
@given(part=TEXTS.filter(lambda text: "\0" not in text))
def test_a_path_passed_through_shells_stays_unchanged_or_is_rejected(part):
    path = Path("/runs") / f"a{part}"
    if said := refusal(lambda: plain_path(path, "the path")):
        assert said.startswith(f"the path {str(path)!r}: goes through shells")
    else:
        assert is_word(str(plain_path(path, "the path")))


@pytest.mark.parametrize("name", ["../quick", "/etc", "..", ".", "", "a\0b", "quick/../quick", "-quick", "./quick"])
def test_a_run_is_selected_by_name_and_never_by_path(tmp_path, name):
    record_run(tmp_path / "runs/quick", "quick", "small")
    for find in (find_runs, find_status):
        with pytest.raises(RunNotFoundError, match="no run"):
            find(tmp_path / "runs", [name])


@pytest.mark.parametrize("name", ["../up", "../../up", "other", "{tmp_path}/up"])
def test_a_report_is_written_beside_its_ledger_whatever_name_the_ledger_has(tmp_path, name):
    directory = record_run(tmp_path / "runs/quick", name.format(tmp_path=tmp_path), "small")
    before = set(tmp_path.rglob("*"))
    report.report(["quick"], runs_dir=tmp_path / "runs")
    written = set(tmp_path.rglob("*")) - before
    assert (directory / "report" / "report.html") in written
    assert {path for path in written if not path.is_relative_to(directory)} == set()
