"""`init --law` drafts what a known law makes best, grown or not, and stays inside the fitted range."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from growctl.draft.advice import advised_draft
from growctl.draft.document import init_command
from growctl.draft.recipe import LawWish
from growctl.ladder.load import load_schedule
from growctl.law.fit import fit_law
from growctl.law.formula import Law
from growctl.report.law import section
from growctl.text.documents import document_text
from model.errors import UserError
from model.flops import Flops, training_flops_per_token
from stages.checkpoint.lineage import TrainingCost
from tests.growctl.bases import change_manifest, write_base
from tests.growctl.law.invented_law import SIZES, Step, loss_of, model_of_step, run_of, study
from tests.growctl.runs import run_here

FLOPS = 1e13
WORTH: dict[str, dict[str, float]] = {"wins": {"constant": 0.4, "before": -0.3}, "loses": {"constant": -0.5}}


@cache
def law_text(kind: str) -> str:
    """A law fitted on runs with little noise."""
    return document_text(fit_law(study(worth=WORTH[kind], noise=0.002), draws=30))


def written(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.json"
    path.write_text(law_text(kind))
    return path


def cost(step: Step) -> float:
    return training_flops_per_token(model_of_step(step), 64).total


def total(steps: Sequence[Step]) -> float:
    return sum(step[2] * cost(step) for step in steps)


def best_known(kind: str) -> float:
    """The lowest true loss over a grid of its own, from scratch or grown once in tokens."""
    shapes = [(3, tokens, 0.0) for tokens in SIZES]
    ladders = [
        [(*a[:2], share * FLOPS / cost(a)), (*b[:2], (1 - share) * FLOPS / cost(b))]
        for (a, b), share in product(product(shapes, shapes), (0.2, 0.4, 0.6))
        if a[1] < b[1] <= 3 * a[1]
    ]
    return min(loss_of(each, worth=WORTH[kind]) for each in [*([(*a[:2], FLOPS / cost(a))] for a in shapes), *ladders])


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORTH)
def test_the_draft_is_the_best_one_of_a_known_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    options = ("--law", written(tmp_path, kind), "--flops", "1e13", "--data", "python-stdlib")
    said = run_here("init", "best.yaml", *options, cwd=tmp_path)[0]
    schedule, depth, steps = load_schedule(str(tmp_path / "best.yaml")), 0, list[Step]()
    for stage in schedule.stages:
        depth = stage.num_layers or depth or schedule.model.num_layers
        steps.append((depth, stage.attention_tokens or 0, float(stage.train_tokens or 0)))
    assert total(steps) == pytest.approx(FLOPS, rel=0.01)
    assert loss_of(steps, worth=WORTH[kind]) <= best_known(kind) + 0.01
    remark = next(line for line in said.splitlines() if "should end at" in line)
    text = (tmp_path / "best.yaml").read_text()
    this = "Do not grow. From scratch, this" if kind == "loses" else "This"
    assert remark.startswith(f"{this} schedule should end")
    assert remark in " ".join(text.split("\n# "))
    assert ("smaller size" in text, schedule.growth.ramp) == (kind == "wins", 0.05)
    assert (len(steps) > 1, len(schedule.controls)) == ((True, 2) if kind == "wins" else (False, 0))
    assert (schedule.optimizer.name, schedule.learning_rate.decay, schedule.learning_rate.peak) == ("muon", 0.25, 0.012)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORTH)
def test_a_checkpoint_is_grown_to_a_wanted_size_and_costs_count_from_now_on(tmp_path: Path, kind: str) -> None:
    first = (3, 32, 8e6)
    paid = TrainingCost(steps=1, tokens=round(first[2]), flops=Flops(first[2] * cost(first), 0, 0), device_seconds=1.0)
    base = write_base(tmp_path / "base", model_of_step(first), paid)
    change_manifest(base, dataset_fingerprint="f00d")
    wish = LawWish(law=str(written(tmp_path, kind)), flops=5e12, start=str(base), data="python-stdlib")
    for params in (None, 300_000) if kind == "wins" else (None,):
        draft = advised_draft(wish.model_copy(update={"params": params}), tmp_path)
        stages = zip(draft.sizes, draft.train_tokens, strict=True)
        steps = [(size.num_layers, size.attention_tokens, tokens) for size, tokens in stages]
        assert total(steps) == pytest.approx(5e12, rel=0.01)
        assert (draft.start == str(base), steps[-1][:2] == first[:2]) == (True, kind == "loses")
        assert ("or the checkpoint, trained further, needs" in draft.remark) == (params is None)
        assert params is None or draft.sizes[-1].num_parameters == pytest.approx(params, rel=0.03)
    if kind == "loses":
        assert_needed(draft.remark, lambda flops: (3, 32, 8e6 + flops / cost(first)), 5e12)
    cheaper = paid.model_copy(update={"flops": Flops(0.9 * paid.flops.total, 0, 0)})
    write_base(tmp_path / "grown", model_of_step(first), cheaper)
    with pytest.raises(UserError, match=r"grown: must have .* one size all along"):
        advised_draft(wish.model_copy(update={"start": str(tmp_path / "grown")}), tmp_path)


@pytest.mark.slow
def test_a_wanted_size_is_compared_with_itself_and_a_better_smaller_one_is_named(tmp_path: Path) -> None:
    wish = LawWish(law=str(written(tmp_path, "loses")), flops=FLOPS, params=400_000, data="python-stdlib")
    draft = advised_draft(wish, tmp_path)
    shape = (draft.sizes[-1].num_layers, draft.sizes[-1].attention_tokens)
    assert_needed(draft.remark, lambda flops: (*shape, flops / cost((*shape, 0))), FLOPS)
    assert " A smaller size, 114,816 parameters, should end lower from scratch" in draft.remark
    assert "--flops 12345678 " in init_command(wish.model_copy(update={"flops": 12345678.0}))
    missed = {"name": "a", "is_grown": False, "flops": 1.0, "measured": 3.0, "predicted": 2.0, "standard_error": 0.1}
    Path(wish.law).write_text(json.dumps(json.loads(law_text("loses")) | {"axes": [], "held_out": [missed]}))
    remark = advised_draft(wish, tmp_path).remark
    assert remark.startswith("Not known whether growing pays: no ladder to this size")
    assert "This law failed its test: its median error on held-out runs is 1.000 nats, above 0.150." in remark


def assert_needed(remark: str, step: Callable[[float], Step], budget: float) -> None:
    """What is said to be needed for the best ladder's loss does reach it, by the true law."""
    loss, needed = map(float, re.findall(r"should end at ([\d.]+) \([^)]*\), for which .* needs ([\d.]+)", remark)[0])
    assert loss_of([step(needed * budget)]) == pytest.approx(loss, abs=0.01)


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (["--flops", "1e17"], {}, r"law.json: outside the fitted range: flops 1e+17 (fitted: "),
        (["--params", "9M"], {}, "outside the fitted range: parameters"),
        (["--params", "1"], {}, "--params 1: outside the fitted range: parameters 1 (fitted: 114,816 to 557,184)"),
        (["--tokens", "9M"], {}, "--tokens: only without --law"),
        (["--grow-depth"], {}, "--grow-depth: only without --law"),
        ([], {"draws": [[1.0]]}, "law.json: not a law, which `growctl law fit` writes: draws: each must have"),
        ([], {"terms": {"x": {"estimate": 0.0, "low": 0.0, "high": 0.0}}}, "parameters and terms: must be"),
        ([], {"sizes": []}, "sizes = []"),
        ([], {"ranges": {}}, "ranges: must also have after, before, flops"),
    ],
)
def test_what_the_law_does_not_know_is_refused_and_nothing_is_written(tmp_path, options, change, message):
    (tmp_path / "law.json").write_text(json.dumps(json.loads(law_text("wins")) | change))
    given = ("--law", "law.json", "--flops", "1e13", *options)
    assert message in run_here("init", "new.yaml", *given, expect=2, cwd=tmp_path)[1]
    assert not (tmp_path / "new.yaml").exists()


def test_a_report_shows_predicted_beside_measured_and_what_lies_outside_the_fitted_range() -> None:
    steps = [(3, 16, 3e6), (3, 32, 3e6)]
    runs = [run_of("inside", steps, 2.5), run_of("outside", [(3, 16, 1e9)], 2.0)]
    runs += [replace(run_of("elsewhere", steps, 2.5), dataset_fingerprint="beef")]
    runs += [replace(run_of("slow", steps, 2.4), conditions=runs[0].conditions | {"learning_rate.decay": 0.5})]
    law = Law.model_validate_json(law_text("wins")).model_copy(update={"rms": {"scratch": 0.5, "grown": 0.1}})
    table: Any = section(runs, law).parts[0]
    outside, inside = table.groups[0].rows
    assert [inside[0].text, inside[1].value] == ["1 of inside", 2.5]
    assert inside[2].value == pytest.approx(loss_of(steps, worth=WORTH["wins"]), abs=0.01)
    for row, half in ((outside, 0.98), (inside, 0.196)):  # 1.96 times the rms
        assert float(row[3].text.split()[0]) == pytest.approx(row[2].value - half, abs=0.01)
    assert (inside[4].text, outside[4].text.startswith("flops ")) == ("", True)


def test_the_plot_is_an_image_of_the_kind_that_its_name_says(tmp_path: Path) -> None:
    run_here("law", "plot", written(tmp_path, "wins"), "--output", "law.png", cwd=tmp_path)
    assert (
        "not with --law" in run_here("report", "--law", written(tmp_path, "wins"), "--json", expect=2, cwd=tmp_path)[1]
    )
    assert (tmp_path / "law.png").read_bytes().startswith(b"\x89PNG")
