"""A mixture in a schedule: what is accepted, what a schedule reads of each source, and what does not last."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from growctl.ladder.controls import plan_controls
from growctl.ladder.datasets import exhausted, mixture_parts, mixture_spans
from growctl.ladder.load import load_resolved, load_schedule, parse_schedule
from growctl.ladder.stage_plans import plan_stages
from growctl.run.dataset import RunDataset
from growctl.run.requests import first_difference, schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.schedule.blocks import Schedule
from growctl.text.console import Terminal
from stages.spec import MixtureSpan
from tests.growctl.ladder.test_mistakes import BASES
from tests.growctl.mixed import SCHEDULE, mixed_schedule, write_schedule, write_texts
from tests.growctl.runs import run_here
from tests.growctl.schedules import changed

BASE, BOOKS, CODE = {"books": 3.0, "code": 1.0}, {"books": 1.0}, {"books": 1.0, "code": 3.0}
SIZES = {"books": 1600, "code": 160}
"""100 samples of books and 10 of code."""


def written(folder: Path, **changes: Any) -> Path:
    data = changed(BASES["mixed"] | {path.replace("__", "."): value for path, value in changes.items()})
    (folder / "mixed.yaml").write_text(yaml.safe_dump(data))
    return folder / "mixed.yaml"


def loaded(path: Path, *overrides: str) -> Schedule:
    return load_schedule(str(path), overrides, runs_dir=path.parent / "runs")


def test_overrides_set_weights_which_a_stored_schedule_keeps(tmp_path: Path) -> None:
    path = written(tmp_path)
    schedule = loaded(path, "data.mixture.0.weight=0.5", "stages.1.mixture={books: 1}", "stages.0.mixture.code=2.5")
    assert schedule.data.base_weights == {"books": 0.5, "code": 3}
    assert [stage.mixture for stage in schedule.stages] == [{"code": 2.5}, {"books": 1}]
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored/schedule.yaml").write_text(schedule_yaml(schedule))
    assert load_resolved(tmp_path / "stored/schedule.yaml") == schedule.model_copy(update={"name": "stored"})


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


def mixed(
    limit: float | None = None, contexts: Any = (16, 16, 16), weights: Any = (None, BOOKS, CODE), **blocks: Any
) -> Schedule:
    """The ladder on a mixture whose code may be read that often, with these contexts and weights of its stages."""
    changes = ({"mixture": weight, "sequence_length": each} for weight, each in zip(weights, contexts, strict=True))
    stages = [stage | change for stage, change in zip(SCHEDULE["stages"], changes, strict=True)]
    schedule = mixed_schedule(Path("/texts"), **{"stages": stages} | blocks)
    for source in schedule["data"].get("mixture", [])[1:]:
        source["epochs_at_most"] = limit
    return parse_schedule(schedule, label="s", default_name="s")


def others_follow(schedule: Schedule) -> Schedule:
    """With `data.when_exhausted: others`."""
    return schedule.model_copy(update={"data": schedule.data.model_copy(update={"when_exhausted": "others"})})


def read(schedule: Schedule, **sizes: int | None) -> dict[tuple[str, str], tuple[int, float | None]]:
    parts = mixture_parts(schedule, SIZES | sizes)
    return {(part.stage, part.source): (part.budget_tokens, part.epochs) for part in parts}


def test_tokens_and_epochs_by_source_and_stage_add_up() -> None:
    """Stages of 24, 24 and 32 samples: 18 + 24 + 8 of books, 6 + 0 + 24 of code."""
    parts = read(mixed())
    assert [tokens for tokens, _ in parts.values()] == [18 * 16, 6 * 16, 24 * 16, 0, 8 * 16, 24 * 16]
    assert [parts["c", name][1] for name in SIZES] == pytest.approx([50 / 100, 30 / 10])
    assert read(mixed(), code=None)["c", "code"] == (24 * 16, None)
    others = read(others_follow(mixed(2.5)))
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
    schedule = others_follow(mixed(limit)) if others else mixed(limit)
    message = exhausted(schedule, SIZES | {"code": code})
    assert message is None if said is None else said in str(message)


@pytest.mark.slow
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


Spans = list[tuple[int, dict[str, float]]]


def control(kind: str, **blocks: Any) -> Schedule:
    return plan_controls(mixed(controls=[{"kind": kind}], **blocks))[0].schedule


INSIDE = mixed(contexts=(4, 4, 16))


@pytest.mark.parametrize(
    ("schedule", "positions", "before", "expected"),
    [
        (mixed(), [0, 320], [], [(0, BASE), (20, BOOKS)]),
        (mixed(), [0, 320, 832], [], [(0, BASE), (20, BOOKS), (52, CODE)]),
        (INSIDE, [0, 324], [], [(0, BASE), (21, BOOKS)]),  # from the next window on
        (INSIDE, [0, 324, 328], [], [(0, BASE), (21, CODE)]),
        (mixed(weights=(None, {"books": 0.3, "code": 0.1}, CODE)), [0, 320, 832], [], [(0, BASE), (52, CODE)]),
        (mixed(weights=(BOOKS, BOOKS | {"code": 0.0}, CODE)), [0, 320], [], [(0, BOOKS)]),
        (mixed(), [1280], [(0, CODE), (40, BASE)], [(0, CODE), (40, BASE)]),  # goes on after a start checkpoint
        (mixed(), [1280], [(0, CODE)], [(0, CODE), (80, BASE)]),
        (mixed(), [1280], [], [(0, BASE)]),
        (mixed(weights=(None,) * 3, data={"source": __file__, "vocab_size": 261}), [0], [], []),
    ],
)
def test_weights_change_at_the_window_where_a_stage_with_other_shares_begins(schedule, positions, before, expected):
    spans = mixture_spans(schedule, positions, [MixtureSpan(first_window=n, weights=each) for n, each in before])
    assert [(span.first_window, span.weights) for span in spans] == expected
    assert bool(expected) == bool(schedule.weights_of(0))


def test_a_control_from_scratch_changes_the_weights_at_the_same_shares_of_its_own_samples() -> None:
    controls = plan_controls(mixed(controls=[{"kind": "tokenformer-scratch", "budgets": [1.0, 3.0]}]))
    assert len(controls) == 2
    for each in controls:
        [plan] = plan_stages(each.schedule)
        spans = mixture_spans(each.schedule, [plan.first_token])
        assert [dict(span.weights) for span in spans] == [BASE, BOOKS, CODE]
        for span, share in zip(spans, (0, 6 / 20, 12 / 20), strict=True):
            assert abs(span.first_window - share * plan.num_steps * 4) <= 2  # half a step of 4 samples


def test_controls_follow_the_stages_that_they_stand_for() -> None:
    of_a = control("scratch-of-each-size", releases="all").stages[0]
    assert (of_a.mixture, of_a.followed) == (BASE, None), "only the stages up to its finished size"
    jump = control("single-jump")
    first, last = jump.stages
    assert (first.mixture, first.train_steps) == (None, 6)
    assert last.followed
    assert last.followed[0].first_step == 0
    assert [dict(each.weights) for each in last.followed] == [BOOKS, CODE]
    assert abs(last.followed[1].first_step / plan_stages(jump)[1].num_steps - 6 / 14) < 0.1
    official = control("official-growth")
    assert [official.weights_of(i) for i in range(3)] == [mixed().weights_of(i) for i in range(3)]


def test_a_run_keeps_its_weights() -> None:
    old = mixed()
    later = mixed(weights=(None, BOOKS, {"books": 1, "code": 2}))
    assert first_difference(old, later) == "stages.2.mixture.code = 2.0, but it was started with 3.0"
    sized = [each.model_copy(update={"approximate_tokens": 5}) for each in old.data.mixture]
    counted = old.model_copy(update={"data": old.data.model_copy(update={"mixture": sized})})
    assert first_difference(old, counted) is None
