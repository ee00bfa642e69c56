"""The texts of a finished stage: written once, again if something changed, and never the end of a run."""

import shutil
import sys

import pytest

from growctl.run import stage_run
from growctl.run.stage_run import write_apart, write_new_samples
from model.errors import Failure
from stages.generate.text_samples import TextRequest, TextSamples, read_samples, write_samples
from stages.stage_dir import StagePaths
from tests.pretrained import write_pretrained

REQUEST = TextRequest(prompts=("def ", ""), max_new_tokens=4, temperature=1.0)


@pytest.fixture
def stage(tmp_path) -> StagePaths:
    found = StagePaths(tmp_path / "0-small")
    write_pretrained(found.final)
    return found


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Writes the texts in this process: starting another takes seconds."""

    def write_here(stage: StagePaths, request: TextRequest) -> TextSamples:
        return write_samples(stage.final, request, stage.samples)

    monkeypatch.setattr(stage_run, "write_apart", write_here)


def no_message(text: str) -> None:
    assert "writing texts" in text


def test_texts_are_written_once(stage):
    first = write_new_samples(stage, REQUEST, no_message)
    assert first
    assert [sample.prompt for sample in first.samples] == ["def ", ""]
    assert first.samples[0].whole.startswith("def ")
    before = stage.samples.stat()
    assert write_new_samples(stage, REQUEST, no_message) is None
    assert (stage.samples.stat().st_mtime_ns, stage.samples.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert read_samples(stage.samples) == first


def test_the_same_checkpoint_writes_the_same_texts(stage):
    first = write_new_samples(stage, REQUEST, no_message)
    stage.samples.write_text("damaged")
    assert write_new_samples(stage, REQUEST, no_message) == first


def test_texts_are_written_again_for_other_prompts_or_another_checkpoint(stage):
    write_new_samples(stage, REQUEST, no_message)
    other = REQUEST.model_copy(update={"prompts": ("class ",)})
    assert write_new_samples(stage, other, no_message)
    shutil.rmtree(stage.final)
    write_pretrained(stage.final, samples_seen=45)
    assert write_new_samples(stage, other, no_message)


def test_nothing_is_written_without_prompts(stage):
    assert write_new_samples(stage, TextRequest(), no_message) is None
    assert not stage.samples.exists()


def test_no_stale_texts_remain(stage, monkeypatch):
    write_new_samples(stage, REQUEST, no_message)
    assert write_new_samples(stage, TextRequest(), no_message) is None
    assert not stage.samples.exists()
    write_new_samples(stage, REQUEST, no_message)
    monkeypatch.setattr(stage_run, "write_apart", lambda *_: None)
    assert write_new_samples(stage, TextRequest(prompts=("class ",)), lambda _: None) is None
    assert not stage.samples.exists()


def test_a_prompt_without_text_loses_no_other_text(stage, capsys):
    messages: list[str] = []
    request = TextRequest(prompts=("a", "x" * 40, "b"), max_new_tokens=2)
    written = write_new_samples(stage, request, messages.append)
    assert [sample.prompt for sample in written.samples] == ["a", "b"]
    assert messages == ["0-small: writing texts on the CPU"]
    assert capsys.readouterr().out.startswith(f"no text after {'x' * 40!r}: the prompt has 40 tokens; ")
    assert write_new_samples(stage, request, no_message) is None


@pytest.mark.slow
def test_a_process_of_its_own_writes_the_texts(stage):
    written = write_apart(stage, REQUEST)
    assert written == write_samples(stage.final, REQUEST, stage.samples)
    shutil.rmtree(stage.final)
    with pytest.raises(Failure, match="final does not exist"):
        write_apart(stage, REQUEST)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "ran out of memory"),
        ("import time; time.sleep(1000)", "it did not end within 0 seconds"),
        ("raise SystemExit('growctl: no room')", "no room"),
        ("", "samples.json cannot be read"),
    ],
)
def test_a_process_that_fails_does_not_end_the_run(stage, monkeypatch, program, message):
    monkeypatch.setattr(stage_run, "PROGRAM", (sys.executable, "-S", "-c", program))
    monkeypatch.setattr(stage_run, "KILL_SECONDS", 0.1 if "sleep" in program else 600.0)
    monkeypatch.setattr(stage_run, "write_apart", write_apart)
    messages: list[str] = []
    assert write_new_samples(stage, REQUEST, messages.append) is None
    assert messages[1].startswith("no text samples: ")
    assert message in messages[1]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [("checkpoint", "final does not exist"), ("disk", "samples.json")],
)
def test_trouble_becomes_a_message(stage, trouble, message):
    messages: list[str] = []
    if trouble == "checkpoint":
        shutil.rmtree(stage.final)
    else:
        stage.samples.mkdir()
    assert write_new_samples(stage, REQUEST, messages.append) is None
    said = messages[-1]
    assert said.startswith("no text samples: ")
    assert message in said
    assert "Error:" not in said
