"""The paths in a schedule: where a relative one counts from, and what a run stores."""

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from growctl.ladder.load import load_resolved, load_schedule
from growctl.run.requests import schedule_yaml
from growctl.schedule.blocks import Schedule
from tests.growctl.bases import write_base
from tests.growctl.schedules import TEXT, changed, file_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, beside the folder of the schedules."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def there(here: Path) -> Path:
    """The folder of the schedules: s.yaml has the source `text`."""
    write(here.parent / "there", {"data.source": "text"})
    return here.parent / "there"


def loaded(folder: Path, *overrides: str) -> Schedule:
    return load_schedule(str(folder / "s.yaml"), overrides)


def write(folder: Path, changes: dict[str, object], name: str = "s.yaml") -> None:
    file_of(folder, OmegaConf.to_yaml(OmegaConf.create(changed(changes))), name)


def test_a_relative_source_counts_from_the_folder_of_the_schedule(here: Path, there: Path) -> None:
    (here / "text").touch()
    (there / "text").touch()
    assert loaded(there).data.source == f"{there}/text"
    assert load_schedule("../there/s.yaml").data.source == f"{there}/text"


def test_a_relative_source_on_the_command_line_counts_from_the_current_directory(here: Path, there: Path) -> None:
    assert loaded(there, "data.source=text").data.source == f"{here}/text"
    assert loaded(there, "data={source: text, vocab_size: 300}").data.source == f"{here}/text"


def test_a_path_in_another_file_counts_from_the_folder_of_that_file(here: Path, there: Path) -> None:
    (there / "data").mkdir()
    (there / "data/mine.yaml").write_text("source: ../texts\nvocab_size: 300\n")
    (there / "inner").mkdir()
    file_of(there / "inner", "defaults: [s]\nseed: 4\n", "child.yaml")
    write(there / "inner", {"data.source": "text"})
    assert loaded(there, "data=mine").data.source == f"{there}/texts"
    assert load_schedule(str(there / "inner/child.yaml")).data.source == f"{there}/inner/text"


def test_a_path_in_a_shipped_file_counts_from_the_current_directory(here: Path, there: Path) -> None:
    assert load_schedule("wikitext").data.source == f"{here}/wikitext-103-raw/wiki.train.raw"
    assert (
        loaded(there, "data=openwebtext", "~data.vocab_size", "model.vocab_size=60000").data.source
        == f"{here}/openwebtext"
    )
    assert load_schedule("quickstart", ["launch=hostfile"]).launch.hostfile.path == f"{here}/hostfile"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("./text/", "{there}/text"),
        ("../text", "{above}/text"),
        ("file://text", "{there}/text"),
        ("texts/*.jsonl.zst", "{there}/texts/*.jsonl.zst"),
        ("/text", "/text"),
        ("python-stdlib", "python-stdlib"),
        ("hf://datasets/a/b", "hf://datasets/a/b"),
        ("file:///text", "file:///text"),
    ],
)
def test_names_urls_and_absolute_paths_stay_and_relative_ones_become_absolute(
    there: Path, source: str, expected: str
) -> None:
    write(there, {"data.source": source})
    assert loaded(there).data.source == expected.format(there=there, above=there.parent)


def test_a_link_on_the_way_up_is_followed(there: Path) -> None:
    (there.parent / "deep/er").mkdir(parents=True)
    (there / "link").symlink_to(there.parent / "deep/er")
    write(there, {"data.source": "link/../text"})
    assert os.path.realpath(str(loaded(there).data.source)) == f"{there.parent}/deep/text"


def test_a_local_tokenizer_counts_from_the_schedules_folder_and_a_name_on_the_hub_stays(
    here: Path, there: Path
) -> None:
    def tokenizer(value: str) -> str | None:
        write(there, {"data.tokenizer": value, "data.vocab_size": None, "model.vocab_size": 300})
        return loaded(there).data.tokenizer

    (there / "mine").mkdir()
    (there / "mine/tokenizer.json").touch()
    (there / "gpt2").mkdir()  # holds no tokenizer
    assert tokenizer("mine") == f"{there}/mine"
    assert tokenizer("./mine") == f"{there}/mine"
    assert tokenizer("t.json") == f"{there}/t.json"
    assert [tokenizer(name) for name in ("gpt2", "OWNER/NAME")] == ["gpt2", "OWNER/NAME"]
    (here / "only_here").mkdir()
    (here / "only_here/tokenizer.json").touch()
    assert tokenizer("only_here") == "only_here", "a tokenizer of the current directory is not meant"


def test_a_hostfile_counts_from_the_schedules_folder_and_by_default_from_the_current_directory(
    here: Path, there: Path
) -> None:
    write(there, {"launch.cluster": "hostfile", "launch.hostfile.path": "hosts"})
    assert loaded(there).launch.hostfile.path == f"{there}/hosts"
    assert loaded(there, "launch.hostfile.path=hosts").launch.hostfile.path == f"{here}/hosts"
    assert loaded(there, "~launch.hostfile").launch.hostfile.path == f"{here}/hostfile"


def test_a_start_checkpoint_counts_from_the_schedules_folder_and_the_name_of_a_run_stays(
    here: Path, there: Path
) -> None:
    write_base(there / "base")
    run = here / "runs/other"
    run.mkdir(parents=True)
    file_of(run, TEXT, "schedule.yaml")
    write_base(run / "stages/0-small/final")
    write(there, {"start.checkpoint": "base"})
    start = loaded(there).start
    assert start
    assert start.base
    assert (start.checkpoint, start.base.path) == (f"{there}/base", f"{there}/base")
    start = loaded(there, "start.checkpoint=other/small").start
    assert start
    assert start.base
    assert (start.checkpoint, Path(start.base.path)) == ("other/small", run / "stages/0-small/final")


def test_a_stored_schedule_holds_absolute_paths(here: Path, there: Path) -> None:
    (here / "text").touch()
    first = loaded(there, "data.source=text", "launch.cluster=hostfile")
    run = here / "runs/s"
    run.mkdir(parents=True)
    (run / "schedule.yaml").write_text(schedule_yaml(first))
    stored = load_resolved(run / "schedule.yaml")
    assert (stored.data.source, stored.launch.hostfile.path) == (f"{here}/text", f"{here}/hostfile")
