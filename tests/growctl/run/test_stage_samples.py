"""The texts of a finished stage: written once, again if something changed, and never the end of a run."""

import shutil

import pytest

from growctl.run import stage_samples
from growctl.run.stage_samples import write_new_samples
from stages.generate.text_samples import TextRequest, read_samples
from stages.stage_dir import StagePaths
from tests.pretrained import write_pretrained

REQUEST = TextRequest(prompts=("def ", ""), max_new_tokens=4, temperature=1.0)


@pytest.fixture
def stage(tmp_path) -> StagePaths:
    found = StagePaths(tmp_path / "0-small")
    write_pretrained(found.final)
    return found


def no_message(text: str) -> None:
    pytest.fail(text)


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
    monkeypatch.setattr(stage_samples, "MOST_PARAMETERS", 10)
    assert write_new_samples(stage, TextRequest(prompts=("class ",)), lambda _: None) is None
    assert not stage.samples.exists()


@pytest.mark.parametrize("trouble", ["prompt", "checkpoint", "size", "disk"])
def test_trouble_becomes_a_message(stage, trouble, monkeypatch):
    request = REQUEST
    messages: list[str] = []
    if trouble == "prompt":
        request = TextRequest(prompts=("x" * 40,))
    elif trouble == "checkpoint":
        shutil.rmtree(stage.final)
    elif trouble == "size":
        monkeypatch.setattr(stage_samples, "MOST_PARAMETERS", 10)
    else:
        stage.samples.mkdir()
    assert write_new_samples(stage, request, messages.append) is None
    [message] = messages
    said = {"prompt": "the prompt has 40 tokens", "size": "too many for this process"}.get(trouble, "")
    assert message.startswith("no text samples: ")
    assert said in message
