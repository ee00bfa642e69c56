"""A mixture in a schedule: what is accepted, what a schedule reads of each source, and what does not last."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from growctl.ladder.datasets import exhausted, mixture_parts
from growctl.ladder.load import load_resolved, load_schedule, parse_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.run.dataset import RunDataset
from growctl.run.requests import schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.schedule.blocks import Schedule
from growctl.text.console import Terminal
from tests.growctl.ladder.test_mistakes import BASES
from tests.growctl.mixed import mixed_schedule, write_schedule, write_texts
from tests.growctl.runs import run_here
from tests.growctl.schedules import changed, message_of

SIZES = {"books": 1600, "code": 160}
"""100 samples of books and 10 of code."""


def written(folder: Path, **changes: Any) -> Path:
    data = changed(BASES["mixed"] | {path.replace("__", "."): value for path, value in changes.items()})
    (folder / "mixed.yaml").write_text(yaml.safe_dump(data))
    return folder / "mixed.yaml"


def loaded(path: Path, *overrides: str) -> Schedule:
    return load_schedule(str(path), overrides, runs_dir=path.parent / "runs")


def test_overrides_set_weights_and_replace_or_remove_a_mixture(tmp_path: Path) -> None:
    path = written(tmp_path)
    schedule = loaded(path, "data.mixture.0.weight=0.5", "stages.1.mixture={books: 1}", "stages.0.mixture.code=2.5")
    assert schedule.data.base_weights == {"books": 0.5, "code": 3}
    assert [stage.mixture for stage in schedule.stages] == [{"code": 2.5}, {"books": 1}]
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored/schedule.yaml").write_text(schedule_yaml(schedule))
    assert load_resolved(tmp_path / "stored/schedule.yaml") == schedule.model_copy(update={"name": "stored"})
    alone = loaded(path, "data.mixture=[{name: web, source: python-stdlib, weight: 1}]")
    assert alone.data.base_weights == {"web": 1}
    plain = loaded(path, "~data.mixture", "data.source=python-stdlib")
    assert (plain.data.source, plain.data.mixture) == ("python-stdlib", [])


def test_a_relative_source_of_a_mixture_counts_from_the_file_of_the_schedule(tmp_path: Path) -> None:
    path = written(tmp_path, data__mixture__0__source="books")
    books, code = loaded(path, "data.mixture.1.source=code").data.mixture
    assert (books.source, code.source) == (str(tmp_path / "books"), str(Path.cwd() / "code"))


def test_a_corpus_stands_for_the_source_of_a_shipped_choice_or_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    own = {"source": "notes", "text_key": "body", "tokenizer": "org/name", "approximate_tokens": "3M"}
    (tmp_path / "data" / "ours.yaml").write_text(yaml.safe_dump(own))
    entries = [{"corpus": "fineweb_edu", "weight": 3}, {"corpus": "ours", "name": "notes", "weight": 1}]
    web, notes = loaded(written(tmp_path, data__mixture=entries)).data.mixture
    assert (web.name, web.source) == ("fineweb_edu", "hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT")
    assert web.include == "*.parquet"
    assert (notes.name, notes.source, notes.text_key) == ("notes", str(tmp_path / "data" / "notes"), "body")
    assert (web.approximate_tokens, notes.approximate_tokens) == (None, 3_000_000)  # counted with this tokenizer
    entries[0]["corpus"] = "finweb_edu"
    message = message_of(loaded, written(tmp_path, data__mixture=entries))
    assert "data.mixture.0.corpus = 'finweb_edu': no such corpus; there are " in message
    assert message.endswith("fineweb_edu'?")


def mixed(limit: float | None = None, contexts: tuple[int, ...] = (16, 16, 16), **data: Any) -> Schedule:
    schedule = mixed_schedule(Path("/texts"))
    schedule["data"] |= data
    schedule["data"]["mixture"][1]["epochs_at_most"] = limit
    pairs = zip(schedule["stages"], contexts, strict=True)
    schedule["stages"] = [stage | {"sequence_length": context} for stage, context in pairs]
    return parse_schedule(schedule, label="s", default_name="s")


def read(schedule: Schedule, **sizes: int | None) -> dict[tuple[str, str], tuple[int, float | None]]:
    parts = mixture_parts(schedule, SIZES | sizes)
    return {(part.stage, part.source): (part.budget_tokens, part.epochs) for part in parts}


def test_tokens_and_epochs_by_source_and_stage_add_up() -> None:
    """Stages of 24, 24 and 32 samples: 18 + 24 + 8 of books, 6 + 0 + 24 of code."""
    parts = read(mixed())
    assert [tokens for tokens, _ in parts.values()] == [18 * 16, 6 * 16, 24 * 16, 0, 8 * 16, 24 * 16]
    assert [parts["c", name][1] for name in SIZES] == pytest.approx([50 / 100, 30 / 10])
    assert read(mixed(), code=None)["c", "code"] == (24 * 16, None)
    others = read(mixed(2.5, when_exhausted="others"))
    assert (others["c", "code"], others["c", "books"][0]) == ((19 * 16, 2.5), 13 * 16)


@pytest.mark.parametrize(
    ("limit", "code", "others", "said"),
    [
        (3, 160, False, None),
        (2.5, 160, False, "'code' has 160 tokens and may be read 2.5 times (epochs_at_most)"),
        (0.05, 160, False, "of 1,280 training tokens"),
        (2.5, None, False, None),
        (2.5, 160, True, None),
    ],
)
def test_a_source_that_does_not_last_is_named(limit: float, code: int | None, others: bool, said: str | None) -> None:
    message = exhausted(mixed(limit, when_exhausted="others" if others else "stop"), SIZES | {"code": code})
    assert message is None if said is None else said in str(message)


@pytest.mark.parametrize("contexts", [(16, 16, 16), (8, 16, 32)])
def test_how_long_sources_last_is_said_in_training_tokens_whatever_the_contexts(contexts: tuple[int, ...]) -> None:
    schedule = mixed(1, contexts)
    found = re.search(r"the sources last for ([\d,]+) of ([\d,]+) training tokens: ", exhausted(schedule, SIZES) or "")
    assert found
    lasting, needed = (int(number.replace(",", "")) for number in found.groups())
    assert needed == sum(plan.budget_tokens for plan in plan_stages(schedule)) == 80 * 16
    before_c = {key: tokens for key, (tokens, _) in read(schedule).items() if key[0] != "c"}
    left = SIZES["code"] - sum(tokens for (_, source), tokens in before_c.items() if source == "code")
    assert 0 < lasting - sum(before_c.values()) < 4 / 3 * left + 2 * max(contexts)


def test_plan_warns_of_sources_that_are_read_often() -> None:
    schedule = mixed_schedule(Path("/texts"))
    for source in schedule["data"]["mixture"]:
        source["approximate_tokens"] = 96
    plan = make_plan(parse_schedule(schedule, label="s", default_name="s"))
    assert any(line.startswith("Training text is read more than 4 times: s 8.3 times") for line in plan.warnings)
    assert [cost.epochs for cost in plan.trunk] == pytest.approx([3, 7, 50 / 6])


def test_plan_validate_and_run_agree_on_a_prepared_mixture(tmp_path: Path) -> None:
    write_texts(tmp_path)
    controls = [{"kind": "tokenformer-scratch", "budgets": [1.0, 3.0]}]
    path, given = write_schedule(tmp_path, controls=controls), ("--runs-dir", tmp_path / "runs")
    run_here("prepare", path, *given)
    document = json.loads(run_here("plan", path, *given, "--json")[0])
    parts = document["stages"][1]["mixture"]
    assert [(part["source"], part["budget_tokens"]) for part in parts] == [("books", 384), ("code", 0)]
    assert document["controls"][0]["stages"][0]["mixture"][1]["budget_tokens"] > 0

    def prepared(epochs: float, **controls: bool) -> Path:
        schedule = loaded(path, f"data.mixture.1.epochs_at_most={epochs}")
        return RunDataset(schedule, tmp_path / "runs", Screen(Terminal()), **controls).prepared()

    _, err = run_here("validate", path, "data.mixture.1.epochs_at_most=0.05", *given, expect=2)
    assert "'code' has " in err
    with pytest.raises(RunError, match=r"may be read 0\.05 times"):
        prepared(0.05)
    prepared(0.13)
    with pytest.raises(RunError, match=r"^mixed-control-tokenformer-scratch-3x: .*or leave the controls out"):
        prepared(0.13, with_controls=True)
    assert not (tmp_path / "runs/mixed").exists()
