"""`growctl eval`: its figures as JSON and as a table, and its messages."""

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.evaluate.evaluation import Evaluator
from stages.checkpoint.manifest import TextFacts
from tests.growctl.runs import run_here
from tests.pretrained import text_config, write_pretrained

Call = Callable[..., str]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint") / "final"
    write_pretrained(directory, text_config(vocab_size=300))
    return directory


@pytest.fixture
def call(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Runs `growctl eval` on the checkpoint, in an empty folder with a text, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "text.txt").write_text("the hen is in the barn. " * 20)

    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["eval", str(checkpoint), *map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def values(document: dict[str, Any], task: str = "text") -> dict[str, float]:
    """The values of a task's scores by metric."""
    return {score["metric"]: score["value"] for score in document["scores"] if score["task"] == task}


def test_json_holds_the_figures_and_what_they_depend_on(call: Call, checkpoint: Path, tmp_path: Path):
    found = json.loads(call("--text", "text.txt", "--stride", 8, "--json"))
    figures = values(found)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert set(figures) == {"loss", "perplexity", "word_perplexity", "bits_per_byte"}
    assert (found["checkpoint"], found["padding_rows"]) == (str(checkpoint), 39)
    text = str(tmp_path.resolve() / "text.txt")
    assert found["settings"] == {"context": 32, "stride": 8, "text": [text], "dtype": "float32"}


@pytest.mark.parametrize(
    ("source", "is_marked"), [("text.txt", True), (".", True), ("t*.txt", True), ("other", False), (None, False)]
)
def test_scores_on_the_text_that_the_model_trained_on_are_marked(call: Call, source: str | None, is_marked: bool):
    opened: Any = SimpleNamespace(text=TextFacts(source=source))
    settings = Evaluator(opened, None, None, 8, print)._text([Path("text.txt")])
    assert ("trained_on" in settings) is is_marked


def test_the_table_has_a_row_for_each_score(call: Call):
    lines = call("--text", "text.txt").splitlines()
    assert [line.split()[1] for line in lines[-4:]] == ["loss", "perplexity", "word_perplexity", "bits_per_byte"]


def test_a_longer_context_lowers_nothing_below_one_window(call: Call):
    whole = json.loads(call("--text", "text.txt", "--context", 4000, "--json"))
    parts = json.loads(call("--text", "text.txt", "--context", 16, "--json"))
    assert whole["scores"][0]["num_samples"] == parts["scores"][0]["num_samples"]
    assert values(whole)["loss"] != values(parts)["loss"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of --text, --split, --tasks, to evaluate on"),
        (["--text", "TEXT", "--split", "train"], "--text and --split: give one of"),
        (["--text", "nowhere.txt"], "--text nowhere.txt: there is no such file"),
        (["--text", "TEXT", "--stride", 33], "--stride 33: must be at most the context of 32 tokens"),
        (["--split", "train", "--stride", 4], "--stride has no effect with --split; it belongs to --text"),
        (["--text", "TEXT", "--rope-scaling", "ntk"], "--rope-scaling has no effect with --text; it belongs to"),
        (["--text", "TEXT", "--contexts", "64,x"], "--contexts 'x': a length is a whole number of tokens"),
        (["--text", "TEXT", "--contexts", ","], "--contexts '': a length is a whole number of tokens"),
        (["--split", "train", "--contexts", "8"], "--contexts has no effect with --split; it belongs to --text"),
        (["--text", "TEXT", "--contexts", "8", "--batch-size", 2], "--batch-size has no effect with --contexts"),
        (["--text", "TEXT", "--device", "cuda:99"], "--device 'cuda:99': this machine has auto, cpu"),
    ],
)
def test_unusable_input_gets_one_message(checkpoint: Path, tmp_path: Path, arguments: list[object], said: str):
    text = tmp_path / "text.txt"
    text.write_text("the hen")
    _, err = run_here("eval", checkpoint, *(text if part == "TEXT" else part for part in arguments), expect=2)
    assert said in err
    assert err.count("\n") == 1


def test_a_checkpoint_of_unknown_context_needs_the_context(tmp_path: Path):
    write_pretrained(tmp_path / "final", context_length=None)
    (tmp_path / "text.txt").write_text("the hen")
    arguments = ("eval", tmp_path / "final", "--text", tmp_path / "text.txt")
    _, err = run_here(*arguments, expect=2)
    assert "does not say how long its training sequences were; give --context N" in err
    assert "bits_per_byte" in run_here(*arguments, "--context", 8)[0]


def test_contexts_give_a_table_and_a_document(call: Call):
    arguments = ("--text", "text.txt", "--contexts", "32,128", "--rope-scaling", "yarn")
    found = json.loads(call(*arguments, "--json"))
    assert (found["settings"]["rope_scaling"], found["settings"]["trained_length"]) == ("yarn", 32)
    at_positions = ["loss_at_0_to_63", "loss_at_64_to_127"]
    assert [*values(found, "context-128")] == ["loss", "seconds_per_token", "bytes_per_token", *at_positions]
    table = call(*arguments)
    assert "yarn 4x" in table
    assert "loss at 64 to 127 *" in table
    assert "* beyond the 32 tokens of a training sequence" in table


def test_tasks_without_the_harness_name_the_command_that_installs_it(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "lm_eval" else find(name, *rest)
    )
    _, err = run_here("eval", checkpoint, "--tasks", "piqa", expect=2)
    assert err == "growctl: --tasks needs lm-evaluation-harness; install it with `pip install 'growctl[eval]'`\n"
