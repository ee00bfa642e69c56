"""A mixture in a schedule: what is accepted, and one clear message for each mistake."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from growctl.ladder.load import load_schedule
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from tests.growctl.ladder.test_mistakes import BASES
from tests.growctl.schedules import changed, message_of, parse


def mixed(**changes: Any) -> dict[str, Any]:
    return changed(BASES["mixed"] | {path.replace("__", "."): value for path, value in changes.items()})


def test_weights_by_stage_need_a_mixture() -> None:
    assert "is for data.mixture; leave it out" in message_of(parse, changed({"stages.1.mixture": {"books": 1}}))
    assert "is for data.mixture; leave it out" in message_of(parse, changed({"data.when_exhausted": "others"}))


def written(folder: Path, data: dict[str, Any]) -> Path:
    path = folder / "mixed.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def loaded(path: Path, *overrides: str) -> Schedule:
    return load_schedule(str(path), overrides, runs_dir=path.parent / "runs")


def test_overrides_set_weights_and_replace_or_remove_a_mixture(tmp_path: Path) -> None:
    path = written(tmp_path, mixed())
    schedule = loaded(path, "data.mixture.0.weight=0.5", "stages.1.mixture={books: 1}", "stages.0.mixture.code=2.5")
    assert schedule.data.base_weights == {"books": 0.5, "code": 3}
    assert [stage.mixture for stage in schedule.stages] == [{"code": 2.5}, {"books": 1}]
    alone = loaded(path, "data.mixture=[{name: web, source: python-stdlib, weight: 1}]")
    assert alone.data.base_weights == {"web": 1}
    plain = loaded(path, "~data.mixture", "data.source=python-stdlib")
    assert (plain.data.source, plain.data.mixture) == ("python-stdlib", [])


def test_a_relative_source_of_a_mixture_counts_from_the_file_of_the_schedule(tmp_path: Path) -> None:
    path = written(tmp_path, mixed(data__mixture__0__source="books"))
    assert [each.source for each in loaded(path).data.mixture] == [str(tmp_path / "books"), "/texts/code"]
    overridden = loaded(path, "data.mixture.1.source=code").data.mixture
    assert overridden[1].source == str(Path.cwd() / "code")


def test_a_corpus_stands_for_the_source_of_a_shipped_choice_or_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    own = {"source": "notes", "text_key": "body", "tokenizer": "org/name", "approximate_tokens": "3M"}
    (tmp_path / "data" / "ours.yaml").write_text(yaml.safe_dump(own))
    entries = [{"corpus": "fineweb_edu", "weight": 3}, {"corpus": "ours", "name": "notes", "weight": 1}]
    web, notes = loaded(written(tmp_path, changed(BASES["mixed"] | {"data.mixture": entries}))).data.mixture
    assert (web.name, web.source) == ("fineweb_edu", "hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT")
    assert web.include == "*.parquet"
    assert (notes.name, notes.source, notes.text_key) == ("notes", str(tmp_path / "data" / "notes"), "body")
    assert (web.approximate_tokens, notes.approximate_tokens) == (None, 3_000_000)  # counted with this tokenizer

    entries[0]["corpus"] = "finweb_edu"
    with pytest.raises(ScheduleError, match=r"data\.mixture\.0\.corpus = 'finweb_edu': no such corpus.*fineweb_edu'\?"):
        loaded(written(tmp_path, changed(BASES["mixed"] | {"data.mixture": entries})))


def test_a_stored_mixture_reads_back_the_same(tmp_path: Path) -> None:
    from growctl.run.requests import schedule_yaml
    from growctl.runs.directory import own_schedule

    schedule = loaded(written(tmp_path, mixed(stages__1__mixture={"books": 1})))
    stored = tmp_path / "mixed" / "schedule.yaml"
    stored.parent.mkdir()
    stored.write_text(schedule_yaml(schedule))
    assert own_schedule(stored) == schedule
