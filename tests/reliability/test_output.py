"""Outside text in names, ledgers and logs is harmless to browsers, spreadsheets and terminals."""

import csv
import io
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table

from growctl.cli import app, report
from growctl.launch.worker_logs import failure_reason
from growctl.report.documents import stages_csv
from growctl.run.screen import LiveScreen, Screen
from growctl.runs.find import find_runs
from growctl.text.console import Terminal
from growctl.text.escaping import visible
from tests.reliability.hostile import TEXTS, record_run

COMMANDS = ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\rgrowctl: done", "a\x08b", "\x1b]8;;http://x\x1b\\a", "\u202ea"]
MARKUP = ["[bold red]a[/]", "[link=http://x]a[/link]", "[/]", ":bomb:", "[a]"]
SHOWN = st.one_of(TEXTS, st.sampled_from(COMMANDS + MARKUP))
quick = settings(max_examples=100)


def run_called(runs_dir: Path, text: str) -> None:
    """A run and its control whose ledgers have `text` in every text field."""
    record_run(runs_dir / "quick", text, text, f"{text}2", text=text)
    record_run(runs_dir / "control", f"{text}3", text, f"{text}2", text=text, ladder=text)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", '=cmd|" /C calc"!A0', "\t=1", "\r=1", "plain", "a=b"])
def test_no_text_in_the_csv_is_a_formula(tmp_path, text):
    run_called(tmp_path / "runs", text)
    rows = list(csv.DictReader(io.StringIO(stages_csv(find_runs(tmp_path / "runs")), newline="")))
    assert len(rows) == 4
    for row in rows:
        for key in ("run", "schedule", "control", "stage"):
            assert row[key][:1] not in ("=", "+", "-", "@", "\t", "\r")
        assert row["schedule"] in (visible(text), f"'{visible(text)}")
        assert float(row["num_parameters"]) == 10


def commands(text: str) -> list[str]:
    """The characters of a text that are not printed as themselves."""
    return [character for character in text if character not in "\n\t" and not character.isprintable()]


@quick
@given(text=SHOWN)
def test_visible_text_has_no_control_characters_and_plain_text_is_unchanged(text):
    assert commands(visible(text)) == []
    assert visible(visible(text)) == visible(text)
    assert (visible(text) == text) == (commands(text) == [])


def terminal() -> tuple[Terminal, io.StringIO]:
    """A terminal without colours, so that no escape sequence in its output comes from rich."""
    got = io.StringIO()
    return Terminal(file=got, force_terminal=True, color_system=None, width=2000), got


@quick
@given(text=SHOWN)
def test_a_terminal_gets_plain_text_from_any_output(text):
    console, got = terminal()
    table = Table(text, title=text)
    table.add_row(text)
    console.print(text)
    console.print(Panel(table))
    console.print(text, style="bold red", soft_wrap=True)
    assert [c for c in commands(got.getvalue()) if c != "\x1b"] == []
    assert "\x1b" not in got.getvalue().replace("\x1b[1;31m", "").replace("\x1b[1m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("text", COMMANDS)
def test_a_run_shows_messages_names_and_the_output_of_workers_as_text(tmp_path, text):
    console, got = terminal()
    Screen(console).message(text)
    assert commands(got.getvalue()) == []
    console, got = terminal()
    with LiveScreen(console) as screen:
        screen.run_started(text, text, [])
        screen.message(text)
    assert text not in got.getvalue()
    assert visible(text) in got.getvalue()
    (tmp_path / "log.txt").write_text(f"growctl: {text}\n", newline="")
    told = io.StringIO()
    with redirect_stderr(told), pytest.raises(SystemExit):
        app._fail(f"stage small failed: {failure_reason(tmp_path / 'log.txt', 0)}", 1)
    assert commands(told.getvalue()) == []


@pytest.mark.parametrize("command", [report.report, app.runs.status])
@pytest.mark.slow
def test_commands_show_the_names_in_a_ledger_as_text(command, tmp_path, recwarn):
    run_called(tmp_path / "runs", "".join(COMMANDS))
    told = io.StringIO()
    with redirect_stdout(told):
        command([], runs_dir=tmp_path / "runs")
    warnings = "".join(str(warning.message) for warning in recwarn)  # of fonts: they name missing characters
    assert commands(told.getvalue() + warnings) == []
    assert "quick" in told.getvalue()


def test_every_command_prints_through_the_terminal_that_shows_only_text():
    """rich's own console would interpret markup and pass escape sequences on."""
    sources = Path(app.__file__).parent.parent.rglob("*.py")
    assert [path.name for path in sources if re.search(r"[ (]Console\(", path.read_text())] == []
