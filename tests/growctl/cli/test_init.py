"""`growctl init` writes a schedule and explains mistakes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_run, plan_stages, total_flops
from growctl.text.formatting import scientific, short_count
from model.errors import UserError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def init(*arguments: str) -> str:
    """What `growctl init` prints on standard output."""
    result = CliRunner().invoke(app, ["init", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["init", *arguments])
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_init_writes_a_file_named_after_the_size_and_says_what_to_do_next(tmp_path: Path) -> None:
    out = init("--params", "350M", "--base", "40M", "--gpus", "8", "--device", "h100")
    assert "growctl plan 350m.yaml" in out
    assert "growctl run 350m.yaml" in out
    assert [path.name for path in tmp_path.iterdir()] == ["350m.yaml"]
    schedule = load_schedule("350m.yaml")
    assert (schedule.name, schedule.launch.devices, schedule.launch.hardware.device) == ("350m", 8, "h100")
    assert [stage.name for stage in schedule.stages] == ["39.8m", "81.8m", "168m", "348m"]


def test_the_summary_states_the_tokens_and_flops_of_releases_apart_from_the_stages() -> None:
    summary = init("--params", "10M", "--tokens", "100M").splitlines()[0]
    plans = plan_run(load_schedule("10m.yaml"))
    for what in ("stages", "releases"):
        part = [plan for plan in plans if bool(plan.branch_of) == (what == "releases")]
        tokens = short_count(sum(plan.budget_tokens for plan in part))
        assert f"; {what}: {tokens} tokens, {scientific(total_flops(part).total)} FLOPs" in summary
    assert summary.endswith(" of them reused)"), "controls of several budgets share their undecayed training"


def test_a_dash_prints_the_schedule_and_nothing_else(tmp_path: Path) -> None:
    text = init("-", "--params", "1M")
    Path("one.yaml").write_text(text)
    assert load_schedule("one.yaml").stages[-1].name == "1m"
    assert [path.name for path in tmp_path.iterdir()] == ["one.yaml"]


@pytest.mark.parametrize(("options", "depths"), [([], [6, 6, 6]), (["--grow-depth"], [3, 4, 6])])
def test_the_command_in_the_heading_writes_the_same_file_again(options: list[str], depths: list[int]) -> None:
    wish = ["--params", "123456789", "--tokens", "2B", "--data", "pile", "--gpus", "4", *options]
    text = init("-", *wish)
    command = text.splitlines()[1].removeprefix("#   growctl init ")
    assert command == " ".join(wish)
    assert init("-", *command.split()) == text
    Path("mine.yaml").write_text(text)
    assert [plan.model.num_layers for plan in plan_stages(load_schedule("mine.yaml"))] == depths


def test_an_existing_file_is_refused_and_stays_as_it_is() -> None:
    Path("350m.yaml").write_text("mine")
    for arguments in (("--params", "350M"), ("350m.yaml", "--params", "1M")):
        failed = CliRunner().invoke(app, ["init", *arguments]).exception
        assert isinstance(failed, FileExistsError)  # main() turns it into exit code 2
        assert failed.filename == "350m.yaml"
    assert Path("350m.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--params 0", "--params = '0': must be greater than or equal to 150000"),
        ("--params 1T", "--params = '1T': must be less than or equal to 24000000000"),
        ("--params 350X", "--params = '350X': must be a whole number; 2.5k, 300M and 15B are fine"),
        ("--params 200M --base 300M", "--base 300M: must be 6,685,440 to 160M for --params 200M"),
        ("--params 200M --base 1k", "--base 1k: must be 6,685,440 to 160M for --params 200M"),
        ("--params 200M --tokens none", "--tokens = 'none': must be a whole number"),
        ("--params 200M --tokens 0", "--tokens = '0': must be greater than 0"),
        ("--params 200M --device h10", "--device = 'h10': must be 'a100-40gb', "),
        ("--params 200M --gpus 0", "--gpus = 0: must be greater than 0"),
        ("--params 200M --data openwebtex", "; did you mean 'openwebtext'?"),
        ("--params 200M text.txt", "'text.txt': must be the name of a run, "),
        ("--params 200M _x.yaml", "'_x.yaml': must be the name of a run, letters, digits"),
    ],
)
def test_unusable_wishes_give_one_message_and_write_nothing(arguments: str, message: str, tmp_path: Path) -> None:
    said = error_of(*arguments.split())
    assert message in said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_wish_that_plan_will_warn_of_says_so_at_once() -> None:
    result = CliRunner().invoke(app, ["init", "far.yaml", "--params", "150M", "--tokens", "100B"])
    assert result.exit_code == 0
    assert "warning: far ends with 663 tokens per parameter" in result.stderr
