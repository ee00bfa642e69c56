"""The paths in a schedule: where a relative one counts from, and what a run stores."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from growctl.ladder.load import load_schedule
from tests.growctl.bases import write_base
from tests.growctl.schedules import changed, file_of


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the schedules, beside the current directory `here`."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "there"


def write(folder: Path, changes: dict[str, Any]) -> str:
    return file_of(folder, yaml.safe_dump(changed(changes)))


TEXT_HERE: dict[str, Any] = {"data.source": "text"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "overrides", "expected"),
    [
        (TEXT_HERE, [], "{top}/there/text"),
        (TEXT_HERE, ["data.source=text"], "{top}/here/text"),
        (TEXT_HERE, ["data=mine"], "{top}/there/texts"),
        (TEXT_HERE, ["data=wikitext"], "{top}/here/wikitext-103-raw/wiki.train.raw"),
        ({"data.source": "link/../text"}, [], "{top}/deep/text"),
        ({"data.source": "file://text"}, [], "{top}/there/text"),
        ({"data.source": "python-stdlib"}, [], "python-stdlib"),
        ({"data.source": "hf://datasets/a/b"}, [], "hf://datasets/a/b"),
    ],
    ids=str,
)
def test_a_relative_source_counts_from_its_file_or_from_the_current_directory(there, changes, overrides, expected):
    (there / "data").mkdir()
    (there / "data/mine.yaml").write_text("source: ../texts\nvocab_size: 300\n")
    (there.parent / "deep/er").mkdir(parents=True)
    (there / "link").symlink_to(there.parent / "deep/er")
    source = str(load_schedule(write(there, changes), [text.format() for text in overrides]).data.source)
    assert (os.path.realpath(source) if "link" in source else source) == expected.format(top=there.parent)


def test_a_source_in_another_file_counts_from_the_folder_of_that_file(there: Path) -> None:
    (there / "inner").mkdir()
    write(there, TEXT_HERE)
    path = file_of(there / "inner", "defaults: [../s]\nseed: 4\n", "child.yaml")
    assert load_schedule(path).data.source == f"{there}/text"
    assert load_schedule("../there/inner/child.yaml").data.source == f"{there}/text"


@pytest.mark.parametrize(
    ("value", "expected"), [("mine", "{there}/mine"), ("gpt2", "gpt2"), ("only_here", "only_here")]
)
def test_a_local_tokenizer_counts_from_the_schedules_folder(there: Path, value: str, expected: str) -> None:
    for folder in (there / "mine", there.parent / "here/only_here"):
        folder.mkdir()
        (folder / "tokenizer.json").touch()
    (there / "gpt2").mkdir()  # holds no tokenizer
    path = write(there, {"data.tokenizer": value, "data.vocab_size": None, "model.vocab_size": 300})
    assert load_schedule(path).data.tokenizer == expected.format(there=there)


def test_a_start_checkpoint_and_a_hostfile_count_from_the_schedules_folder(there: Path) -> None:
    write_base(there / "base")
    hosts = {"launch.cluster": "hostfile", "launch.hostfile.path": "hosts"}
    schedule = load_schedule(write(there, {"start.checkpoint": "base"} | hosts))
    assert schedule.start
    assert schedule.start.checkpoint == f"{there}/base"
    assert schedule.launch.hostfile.path == f"{there}/hosts"
