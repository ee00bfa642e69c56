"""The command line starts fast and explains mistakes."""

import json
import re
import signal
import subprocess
import sys
from typing import get_args, get_type_hints

import pytest
from typer.testing import CliRunner

from growctl.cli import checkpoints, verify
from growctl.cli.app import app
from growctl.run.signals import Stopped
from model.policy import Init, Moments, Preset, TauPolicy
from model.precision import ComparisonDtype
from stages.checkpoint.manifest import read_manifest
from tests.growctl.runs import run_here
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.workers import REPOSITORY

EXPAND_OPTIONS = {"preset": Preset, "init": Init, "tau": TauPolicy, "moments": Moments}
COMMANDS = [
    "clean",
    "compare",
    "data",
    "doctor",
    "eval",
    "expand",
    "export",
    "generate",
    "import",
    "init",
    "inspect",
    "ledger",
    "plan",
    "prepare",
    "report",
    "run",
    "runs",
    "schema",
    "show",
    "shrink",
    "status",
    "sweep",
    "validate",
    "verify",
]


def test_the_commands_are_those_that_the_tests_know():
    registered = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    groups = [group.typer_instance.info.name or "" for group in app.registered_groups if group.typer_instance]
    assert sorted([*registered, *groups]) == COMMANDS


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom growctl.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'deepspeed', 'matplotlib', 'hydra', 'datatrove', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert command in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Example: growctl {command}" in " ".join(result.output.split())


def test_the_readme_names_every_command_and_no_other():
    named = re.findall(r"^\|.*", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert sorted(set(re.findall(r"`growctl ([a-z]+)", "\n".join(named)))) == COMMANDS


def test_commands_on_checkpoints_offer_every_name_that_the_model_knows():
    """They cannot import it for --help: the command has to start where `model` is somebody else's (doctor says so)."""
    for command, option, known in [
        *((checkpoints.expand, name, names) for name, names in EXPAND_OPTIONS.items()),
        (verify.verify, "dtype", ComparisonDtype),
    ]:
        hint = get_type_hints(command)[option]
        offered = [choice for part in [hint, *get_args(hint)] for choice in get_args(part) if isinstance(choice, str)]
        assert offered == list(get_args(known)), option


def test_expand_grows_a_checkpoint_and_prints_its_sizes(tmp_path):
    write_checkpoint(tmp_path / "final")
    out, _ = run_here("expand", tmp_path / "final", "--add-tokens", 8, "--output", tmp_path / "grown")
    assert "+8 tokens in Q, K, V and O, +16 in the FFN" in " ".join(out.split())
    sizes = ("--add-tokens", 8, "--add-ffn-tokens", 3)
    out, _ = run_here("expand", tmp_path / "final", *sizes, "--output", tmp_path / "two", "--json")
    assert json.loads(out)["lineage"]["growth"]["ffn_tokens"] == 3
    assert read_manifest(tmp_path / "two").model.blocks[0].ffn.num_tokens == 13


@pytest.mark.parametrize(
    "layers", ["0,3", "1-3", "2-1", "0,", "\u0661", "0-" + "9" * 5000], ids=lambda value: value[:20]
)
def test_expand_rejects_layers_that_the_model_does_not_have(tmp_path, layers):
    write_checkpoint(tmp_path / "final", small_config(num_layers=3))
    arguments = ("expand", tmp_path / "final", "--add-tokens", 8, "--layers", layers, "--output", tmp_path / "grown")
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, ValueError)
    assert f"--layers '{layers}'"[:200] in str(result.exception)
    assert "must be numbers and ranges below 3, such as 0,2,5-7" in str(result.exception)
    assert not (tmp_path / "grown").exists()


def test_expand_grows_only_the_chosen_layers(tmp_path):
    write_checkpoint(tmp_path / "final", small_config(num_layers=3))
    run_here("expand", tmp_path / "final", "--add-tokens", 8, "--layers", "0, 2-2", "--output", tmp_path / "grown")
    before, after = (read_manifest(tmp_path / name).model.blocks for name in ("final", "grown"))
    grown = [new.query.num_tokens - old.query.num_tokens for old, new in zip(before, after, strict=True)]
    assert grown == [8, 0, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["expand", "nowhere", "--add-tokens", "4", "--output", "x"], "nowhere does not exist"),
        (["expand", "final", "--add-tokens", "0", "--output", "x"], "nothing to add; set --add-tokens"),
        (["expand", "final", "--add-tokens", "4", "--output", "final"], "final already exists"),
        (["report", "--runs-dir", "empty"], "there are no runs in"),
        (["run", "quickstart", "--runs-dir", "file"], "file"),
        (["run", "quikstart"], "did you mean 'quickstart'?"),
        (["run", "quickstart", "--name", "../escape"], "--name '../escape'"),
        (["plan", "quickstart", "stages.0.train_token=5"], "did you mean 'train_tokens'?"),
    ],
)
def test_invalid_input_gives_one_message_and_exit_code_2(tmp_path, arguments, message):
    write_checkpoint(tmp_path / "final")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    paths = {"nowhere", "final", "x", "empty", "file"}
    out, err = run_here(*(tmp_path / a if a in paths else a for a in arguments), expect=2)
    assert message in " ".join(err.split()).replace("│ ", "")
    assert "Traceback" not in out + err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "final"]


@pytest.mark.parametrize("command", ["schema", "plan", "status"])
def test_an_error_repeats_the_users_words_without_explaining_them(command):
    _, err = run_here(command, "ledger", expect=2)
    assert "ledger" in err
    assert "a run's record of costs" not in err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run", "terminated; run the same command again to resume"),
        ("sweep", "terminated; run the same command again to resume"),
        ("import", "terminated"),
        ("expand", "terminated"),
    ],
)
def test_only_a_run_that_is_stopped_says_that_it_can_be_resumed(monkeypatch, command, said):
    def stop(**_: object) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr("growctl.cli.app.app", stop)
    _, err = run_here(command, expect=143)
    assert err == f"growctl: {said}\n"
