"""`growctl eval`: its figures as JSON and as a table, its messages, and whose tokenizer reads the text."""

import json
import math
import re
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from growctl.evaluate.evaluation import Evaluator
from growctl.evaluate.pretrained import open_pretrained
from model.tokenformer_config import PATTENTIONS
from stages.checkpoint.manifest import TextFacts
from stages.stage_dir import TOKENIZER_NAME
from tests.growctl.runs import run_here
from tests.pretrained import text_config, write_pretrained
from tests.stages.grow.test_compare import rewrite


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, beside a text."""
    directory = tmp_path_factory.mktemp("checkpoint") / "final"
    write_pretrained(directory, text_config(vocab_size=300))
    directory.with_name("text.txt").write_text("the hen is in the barn. " * 20)
    return directory


def call(checkpoint: Path, words: str, expect: int = 0) -> str:
    """What `growctl eval` prints of the checkpoint: its result, or its message."""
    outputs = run_here("eval", checkpoint, *words.split(), expect=expect, columns=80, cwd=checkpoint.parent)
    return outputs[bool(expect)]


def values(document: dict[str, Any], task: str = "text") -> dict[str, float]:
    """The values of a task's scores by metric."""
    return {score["metric"]: score["value"] for score in document["scores"] if score["task"] == task}


def test_json_holds_the_figures_and_what_they_depend_on_and_the_table_has_a_row_for_each(checkpoint: Path):
    found = json.loads(call(checkpoint, "--text text.txt --stride 8 --json"))
    figures = values(found)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert list(figures) == ["loss", "perplexity", "word_perplexity", "bits_per_byte"]
    assert (found["checkpoint"], found["padding_rows"]) == (str(checkpoint), 39)
    text = str(checkpoint.with_name("text.txt").resolve())
    assert found["settings"] == {"context": 32, "stride": 8, "text": [text], "dtype": "float32"}
    lines = call(checkpoint, "--text text.txt").splitlines()
    assert [line.split()[1] for line in lines[-4:]] == list(figures)


def test_top_k_tokens_gives_the_loss_at_each_number_of_tokens_in_all_pattentions_and_in_each_kind(checkpoint: Path):
    words = "--text text.txt --top-k-tokens 1.0,1,0.5"
    found = json.loads(call(checkpoint, f"{words} --json"))
    dense, *readings = found["readings"]
    expected = list(product((1.0, 1, 0.5), (None, *PATTENTIONS)))
    assert [(reading["amount"], reading["kind"]) for reading in readings] == expected
    losses = [reading["loss"] for reading in readings]
    assert {dense["loss"], *losses[:6]} == {values(found)["loss"]}
    chosen = json.loads(call(checkpoint, f"{words} --top-k-norm chosen --json"))["readings"]
    for number, (kind, loss) in enumerate(zip((None, *PATTENTIONS), losses[6:12], strict=True), 7):
        if kind in (None, "ffn"):
            assert len({dense["loss"], loss, chosen[number]["loss"]}) == 3
    rows = [line.split() for line in call(checkpoint, words).splitlines() if re.match(r" +(1.0|1|0.5) ", line)]
    assert [row[:2] for row in rows] == [[str(each["amount"]), f"{each['share']:.1%}"] for each in readings[::6]]


@pytest.mark.parametrize(
    ("source", "is_marked"), [("text.txt", True), (".", True), ("t*.txt", True), ("other", False), (None, False)]
)
def test_scores_on_the_text_that_the_model_trained_on_are_marked(tmp_path, monkeypatch, source, is_marked):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").touch()
    opened: Any = SimpleNamespace(text=TextFacts(source=source))
    settings = Evaluator(opened, None, None, 8, print)._text([Path("text.txt")])
    assert ("trained_on" in settings) is is_marked


def test_contexts_give_scores_by_position(checkpoint: Path):
    words = "--text text.txt --contexts 32,128 --rope-scaling yarn"
    found = json.loads(call(checkpoint, f"{words} --json"))
    assert (found["settings"]["rope_scaling"], found["settings"]["trained_length"]) == ("yarn", 32)
    at_positions = ["loss_at_0_to_63", "loss_at_64_to_127"]
    assert [*values(found, "context-128")] == ["loss", "seconds_per_token", "bytes_per_token", *at_positions]
    assert "yarn 4x" in call(checkpoint, words)


def opened(checkpoint: Path, tokenizer: Path | None = None) -> list[str]:
    """Opens a checkpoint and returns what the user is told."""
    told: list[str] = []
    with open_pretrained(str(checkpoint), checkpoint.parent, told.append, tokenizer=tokenizer, device="cpu"):
        return told


def test_a_given_tokenizer_other_than_the_models_own_gets_a_warning(tmp_path):
    own = tmp_path / "final" / TOKENIZER_NAME
    write_pretrained(own.parent)
    saved_again = tmp_path / "again.json"
    saved_again.write_bytes(own.read_bytes() + b"\n")
    assert opened(own.parent, own) == []
    [warning] = opened(own.parent, saved_again)
    assert warning.startswith(f"--tokenizer {saved_again} is not the file that {own.parent} was trained with")
    rewrite(own.parent, tokenizer_sha256=None)
    assert opened(own.parent, saved_again) == [], "not known"
