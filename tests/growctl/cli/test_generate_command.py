"""`growctl generate`: prompts from everywhere, and output that is safe to show."""

import io
import json
from pathlib import Path

import pytest

from stages.generate import generate as generating
from stages.stage_dir import StagePaths
from tests.growctl.runs import run_here
from tests.pretrained import byte_tokenizer, write_pretrained


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory) -> Path:
    """A runs directory with the run `tiny`, which has one finished stage."""
    folder = tmp_path_factory.mktemp("runs")
    write_pretrained(StagePaths(folder / "tiny/stages/0-small").final)
    (folder / "tiny/schedule.yaml").write_text("")
    return folder


@pytest.fixture
def generate(runs_dir):
    def run(*arguments: object, expect: int = 0) -> tuple[str, str]:
        return run_here("generate", "tiny", "--device", "cpu", *arguments, "--runs-dir", runs_dir, expect=expect)

    return run


def test_the_document_has_the_text_the_tokens_and_the_reason(generate):
    out, err = generate("the", "--json", "--samples", 2, "--max-new-tokens", 5, "--seed", 7)
    document = json.loads(out)
    assert "tokens/s" not in err
    assert document["prompt_tokens"] == byte_tokenizer().encode("the").ids
    assert [len(sample["tokens"]) for sample in document["samples"]] == [5, 5]
    for sample in document["samples"]:
        assert sample["text"] == byte_tokenizer().decode(sample["tokens"])
        assert sample["finish_reason"] == "length"
    assert document["tokens_per_second"] == pytest.approx(10 / document["wall_seconds"])
    again = json.loads(generate("the", "--json", "--max-new-tokens", 5, "--seed", 7)[0])
    assert again["samples"] == document["samples"][:1]
    settings = {"--top-k-tokens 1.0": True, "--top-k-tokens 1 --top-k-norm chosen": False}
    for words, is_same in settings.items():
        read = json.loads(generate("the", "--json", "--max-new-tokens", 5, "--seed", 7, *words.split())[0])
        assert (read["samples"] == again["samples"]) is is_same
    assert read["settings"]["top_tokens"] == {"amount": 1, "norm": "chosen"}


def test_a_prompt_can_be_piped_in(generate, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("two\nlines é\r\n".encode()), encoding="utf-8"))
    assert json.loads(generate("-", "--json", "--greedy")[0])["prompt"] == "two\nlines é"


def test_texts_are_printed_after_their_prompt_without_control_characters(generate, monkeypatch):
    ids = byte_tokenizer().encode(" é😀\n\tend\x1b]0;\x07\r\x9b31m\u202e\nb").ids
    monkeypatch.setattr(generating, "decode", lambda model, prompts, *_, **__: ([i] * len(prompts) for i in ids))
    out, err = generate("x\x1b[2J", "--samples", 2, "--stop", "b")
    text = "x\\x1b[2J é😀\n\tend\\x1b]0;\\x07\\r\\x9b31m\\u202e\n\n"
    assert out == f"--- sample 1 of 2 ---\n{text}--- sample 2 of 2 ---\n{text}"
    assert "ended by stop" in err
    assert generate("x")[0].startswith("x é😀\n\tend")
