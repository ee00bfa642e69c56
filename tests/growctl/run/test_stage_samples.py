"""The texts of a finished stage: written once, again if something changed, and never the end of a run."""

import shutil
import sys

import pytest

from growctl.run import stage_run
from growctl.run.stage_run import write_apart, write_new_samples
from model.errors import Failure
from stages.generate.text_samples import TextRequest, TextSamples, read_samples, write_samples
from stages.stage_dir import StagePaths
from tests import warm_start
from tests.pretrained import write_pretrained

REQUEST = TextRequest(prompts=("def ", ""), max_new_tokens=4, temperature=1.0)
OTHER = TextRequest(prompts=("class ",), max_new_tokens=4)


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


def written(stage: StagePaths, request: TextRequest) -> tuple[TextSamples | None, list[str]]:
    """The new texts, and what was said beside that they are being written."""
    said: list[str] = []
    new = write_new_samples(stage, request, said.append)
    return new, [message for message in said if message != "0-small: writing texts on the CPU"]


def test_texts_are_written_once_and_the_same_again_when_they_are_damaged(stage):
    first, said = written(stage, REQUEST)
    assert first
    assert said == []
    assert [sample.prompt for sample in first.samples] == ["def ", ""]
    assert first.samples[0].whole.startswith("def ")
    before = stage.samples.stat()
    assert written(stage, REQUEST) == (None, [])
    assert stage.samples.stat().st_ino == before.st_ino
    assert read_samples(stage.samples) == first
    stage.samples.write_text("damaged")
    assert written(stage, REQUEST) == (first, [])


def test_texts_are_written_again_for_other_prompts_or_another_checkpoint_and_stale_ones_removed(stage, monkeypatch):
    assert written(stage, TextRequest()) == (None, [])
    assert written(stage, REQUEST)[0]
    assert written(stage, OTHER)[0]
    shutil.rmtree(stage.final)
    write_pretrained(stage.final, samples_seen=45)
    assert written(stage, OTHER)[0]
    assert written(stage, TextRequest()) == (None, [])
    assert not stage.samples.exists()
    written(stage, REQUEST)
    monkeypatch.setattr(stage_run, "write_apart", lambda *_: None)
    written(stage, OTHER)
    assert not stage.samples.exists()


@pytest.mark.slow
def test_a_process_of_its_own_writes_the_texts(stage, monkeypatch):
    monkeypatch.setenv(warm_start.VARIABLE, "1")
    new = write_apart(stage, REQUEST)
    assert new == write_samples(stage.final, REQUEST, stage.samples)
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
    new, [said] = written(stage, REQUEST)
    assert new is None
    assert said.startswith("no text samples: ")
    assert message in said
