"""Only the owning modules spell the names of files under a runs directory."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from growctl.runs_dir import RunPaths, RunsPaths
from stages.stage_dir import StagePaths, is_checkpoint_name, is_set_aside, is_unfinished, staging_directory
from tests.workers import REPOSITORY

OWNERS = {REPOSITORY / "growctl/runs_dir.py", REPOSITORY / "stages/stage_dir.py"}
FILES = r"log\.txt|metrics\.jsonl|spec\.json|schedule\.yaml|ledger\.db|jobs\.json|manifest\.json|environment\.json"
REPORT = r"report\.html|compute-against-perplexity\.png|stages\.csv"
HIDDEN = r"\.run_id|\.bugs|\.keys|\.datasets|\.lock|\.lock\.held|\.lifeline(\..*)?"
SPELLED = re.compile(rf"(.*/)?({FILES}|{REPORT}|{HIDDEN})|\.?(step|converted)_(\*.*|\d+)?|broken-|stages/.*\*.*")
"""A text that is nothing but one of these names, or a pattern of them; messages have more words."""

FOLDERS = {"initial", "final", "stages", "report", "slurm", "stacks", "hostfile"}
"""These are words of other things too, so that only what is joined to a path counts."""


def spelled_names(source: str) -> Iterator[tuple[int, str]]:
    """The line and text of every name that `source` spells."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SPELLED.fullmatch(node.value):
            yield node.lineno, node.value
        if isinstance(node, ast.expr):
            yield from ((node.lineno, name) for name in joined_names(node) if name in FOLDERS)


def joined_names(node: ast.expr) -> Iterator[str]:
    """The names that an expression joins to a path; in an f-string, those between its slashes."""
    parts: list[ast.expr] = []
    match node:
        case ast.BinOp(op=ast.Div()):
            parts = [node.left, node.right]
        case ast.Call(func=ast.Attribute(attr="joinpath" | "with_name") | ast.Name(id="Path")):
            parts = node.args
        case ast.JoinedStr():
            parts = [part for part in node.values if isinstance(part, ast.Constant) and "/" in str(part.value)]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from part.value.split("/")


@pytest.mark.slow
def test_no_file_but_the_owners_spells_a_name_under_a_runs_directory() -> None:
    paths = [
        path for floor in ("growctl", "stages", "benchmarks") for path in sorted((REPOSITORY / floor).rglob("*.py"))
    ]
    others = {str(path.relative_to(REPOSITORY)): path.read_text() for path in paths if path not in OWNERS}
    found = [f"{name}:{line}: {text!r}" for name, code in others.items() for line, text in spelled_names(code)]
    assert len(others) > 100
    assert not found, "use RunPaths and StagePaths for " + ", ".join(found)


@pytest.mark.parametrize(
    "code",
    [
        'directory / "final"',
        'f"step_{step:08d}"',
        'directory.glob("step_*")',
        'directory / f".lifeline.{attempt}"',
        'directory.joinpath("final")',
        'Path(directory, "final")',
        'f"{stage}/final"',
        'PAGE_NAME = "report.html"',
    ],
)
def test_a_name_that_is_spelled_is_found(code: str) -> None:
    assert list(spelled_names(code))
    assert not list(spelled_names("""point == "final", "see metrics.jsonl", {"step_seconds": 1}, "hostfile" """))


def test_a_stage_knows_its_checkpoints_by_their_steps(tmp_path: Path) -> None:
    stage = StagePaths(tmp_path)
    for name in ("step_00000020", "step_00000003", "step_123456789", "step_new"):
        (tmp_path / name).mkdir()
    stage.step(7).touch()
    assert list(stage.checkpoints()) == [3, 20, 123456789]
    assert stage.step(20) == stage.checkpoints()[20]
    assert {path.name for path in stage.named_as_checkpoints()} == {path.name for path in tmp_path.iterdir()}


def test_what_died_while_it_was_written_is_left_over_and_no_checkpoint(tmp_path: Path) -> None:
    stage = StagePaths(tmp_path)
    for whole in (stage.initial, stage.converted_start, stage.final, stage.step(5), tmp_path / "converted_00000005"):
        whole.mkdir()
        staging_directory(whole).mkdir()
    names = ("initial", "start", "final", "step_00000005", "converted_00000005")
    assert {path.name for path in stage.leftovers()} == {f".{name}.incomplete" for name in names}
    assert all(is_unfinished(path) and not is_checkpoint_name(path.name) for path in stage.leftovers())
    assert is_set_aside(tmp_path / "broken-final-2")


def test_stages_are_found_in_their_order_and_other_folders_are_none(tmp_path: Path) -> None:
    run = RunsPaths(tmp_path).run("quick")
    for name in ("10-last", "9-large", "0-a-b", "notes", "x-1"):
        (run.stages / name).mkdir(parents=True)
    assert [(index, name) for index, name, _ in run.stages_found()] == [(0, "a-b"), (9, "large"), (10, "last")]
    assert next(stage for *_, stage in run.stages_found()).directory == run.stage(0, "a-b").directory


def test_only_a_run_that_left_more_than_its_schedule_has_begun(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    run.schedule.touch()
    assert not run.has_begun()
    run.ledger.touch()
    assert run.has_begun()
