"""`growctl generate`: prompts from everywhere, output that is safe to show, and one message for a mistake."""

import io
import json
from pathlib import Path

import pytest

from stages.generate import generate as generating
from stages.stage_dir import StagePaths
from tests.growctl.runs import made_once, run_here
from tests.pretrained import byte_tokenizer, write_pretrained


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory) -> Path:
    """A runs directory with the run `tiny`, which has one finished stage."""

    def make(folder: Path) -> None:
        write_pretrained(StagePaths(folder / "tiny/stages/0-small").final)
        (folder / "tiny/schedule.yaml").write_text("")

    return made_once(tmp_path_factory, "generate_command", make)


@pytest.fixture
def generate(runs_dir):
    def run(*arguments: object, expect: int = 0) -> tuple[str, str]:
        return run_here("generate", "tiny", "--device", "cpu", *arguments, "--runs-dir", runs_dir, expect=expect)

    return run


def type_in(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def say(monkeypatch, text: str) -> None:
    """Makes the model say `text`."""
    ids = byte_tokenizer().encode(text).ids
    monkeypatch.setattr(generating, "decode", lambda model, prompts, *_, **__: ([i] * len(prompts) for i in ids))


def test_a_text_is_printed_after_its_prompt_and_statistics_go_to_standard_error(generate, monkeypatch):
    say(monkeypatch, " é€😀\n\tend")
    out, err = generate("the", "--max-new-tokens", 15)
    assert out == "the é€😀\n\tend\n"
    assert "using" in err
    assert "15 tokens in " in err
    assert "ended by length" in err


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


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_a_prompt_can_be_piped_in(generate, monkeypatch, arguments):
    type_in(monkeypatch, "two\nlines é\r\n".encode())
    assert json.loads(generate(*arguments, "--json", "--greedy")[0])["prompt"] == "two\nlines é"
    monkeypatch.setattr("sys.stdin", None)
    assert "there is no prompt" in generate(*arguments, expect=2)[1]
    type_in(monkeypatch, b"ab\xff")
    assert "the prompt is not valid UTF-8" in generate(*arguments, expect=2)[1]


def test_several_samples_are_printed_one_after_the_other_without_control_characters(generate, monkeypatch):
    say(monkeypatch, "a\x1b]0;\x07\r\x9b31m\u202e\nb")
    out, err = generate("x\x1b[2J", "--samples", 2, "--stop", "b")
    text = "x\\x1b[2Ja\\x1b]0;\\x07\\r\\x9b31m\\u202e\n\n"
    assert out == f"--- sample 1 of 2 ---\n{text}--- sample 2 of 2 ---\n{text}"
    assert "ended by stop" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--greedy", "--top-k", "3"], "--greedy always chooses the likeliest token; leave out --top-k"),
        (["x", "--top-p", "0"], "--top-p 0.0: Input should be greater than 0"),
        (["x", "--stop", ""], "--stop '': String should have at least 1 character"),
        (["x" * 33], "the prompt has 33 tokens; with a context of 32 tokens it may have 31"),
        (["x", "--device", "cuda:99"], "--device 'cuda:99': this machine has auto, cpu"),
        (["x", "--tokenizer", "nowhere.json"], "nowhere.json cannot be read"),
        (["\udcff"], "is not valid UTF-8"),
    ],
)
def test_a_mistake_gets_one_message(generate, arguments, message):
    out, err = generate(*arguments, expect=2)
    assert out == ""
    assert message in " ".join(err.split())
