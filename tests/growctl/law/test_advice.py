"""`init --law` drafts what a known law makes best, grown or not, and stays inside the fitted range."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from growctl.draft.advice import advised_draft
from growctl.draft.recipe import Draft, LawWish
from growctl.ladder.load import load_schedule
from growctl.law.fit import fit_law
from growctl.law.formula import Law
from growctl.report.law import section
from growctl.text.documents import document_text
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


@pytest.fixture(params=WORTH)
def kind(request) -> str:
    return request.param


def written(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.json"
    path.write_text(law_text(kind))
    return path


def steps_of(draft: Draft) -> list[Step]:
    stages = zip(draft.sizes, draft.train_tokens, strict=True)
    return [(size.num_layers, size.attention_tokens, tokens) for size, tokens in stages]


def cost(step: Step) -> float:
    return training_flops_per_token(model_of_step(step), 64).total


def best_known(kind: str, *, grown: bool) -> float:
    """The lowest true loss over a grid of its own, from scratch or grown once in tokens."""
    shapes = [(3, tokens, 0.0) for tokens in SIZES]
    if not grown:
        return min(loss_of([(*shape[:2], FLOPS / cost(shape))]) for shape in shapes)
    return min(
        loss_of([(*a[:2], share * FLOPS / cost(a)), (*b[:2], (1 - share) * FLOPS / cost(b))], worth=WORTH[kind])
        for a, b in product(shapes, shapes)
        for share in (0.2, 0.4, 0.6)
        if a[1] < b[1] <= 3 * a[1]
    )


def test_the_draft_ends_as_low_as_the_best_schedule_of_a_known_law_and_grows_only_if_that_wins(tmp_path, kind) -> None:
    draft = advised_draft(LawWish(law=str(written(tmp_path, kind)), flops=FLOPS, data="python-stdlib"), tmp_path)
    steps = steps_of(draft)
    assert sum(step[2] * cost(step) for step in steps) == pytest.approx(FLOPS, rel=0.01)
    assert (len(steps) > 1) == (kind == "wins")
    best = min(best_known(kind, grown=True), best_known(kind, grown=False))
    assert loss_of(steps, worth=WORTH[kind]) <= best + 0.01
    assert draft.remark.startswith("Predicted: a loss of" if kind == "wins" else "Do not grow. Predicted: a loss of")
    assert (draft.peak, draft.optimizer, draft.batch_size) == (0.012, "muon", 64)


def test_a_wanted_size_is_the_last_one(tmp_path) -> None:
    law = str(written(tmp_path, "wins"))
    draft = advised_draft(LawWish(law=law, flops=FLOPS, params=300_000, data="python-stdlib"), tmp_path)
    assert draft.sizes[-1].num_parameters == pytest.approx(300_000, rel=0.03)
    assert len(draft.sizes) > 1


@pytest.mark.slow
def test_a_checkpoint_is_grown_from_what_it_is_and_costs_count_from_now_on(tmp_path, kind) -> None:
    first = (3, 32, 8e6)
    paid = TrainingCost(steps=1, tokens=round(first[2]), flops=Flops(first[2] * cost(first), 0, 0), device_seconds=1.0)
    base = write_base(tmp_path / "base", model_of_step(first), paid)
    change_manifest(base, dataset_fingerprint="f00d")
    law = str(written(tmp_path, kind))
    draft = advised_draft(LawWish(law=law, flops=5e12, start=str(base), data="python-stdlib"), tmp_path)
    steps = steps_of(draft)
    assert sum(step[2] * cost(step) for step in steps) == pytest.approx(5e12, rel=0.01)
    assert (draft.start == str(base), steps[-1][:2] == first[:2]) == (True, kind == "loses")
    assert "or the checkpoint, trained on, reaches for" in draft.remark


@pytest.mark.slow
def test_the_command_writes_a_schedule_that_loads_with_the_prediction_in_a_comment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    for kind in WORTH:
        options = ("--law", written(tmp_path, kind), "--flops", "1e13", "--data", "python-stdlib")
        said = run_here("init", f"{kind}-best.yaml", *options, cwd=tmp_path)[0]
        schedule = load_schedule(str(tmp_path / f"{kind}-best.yaml"))
        text = " ".join((tmp_path / f"{kind}-best.yaml").read_text().split("\n# "))
        remark = next(line for line in said.splitlines() if "a loss of" in line)
        assert remark in text
        assert "--flops 1e+13" in text
        assert ("Do not grow" in remark, [each.kind for each in schedule.controls]) == (
            (False, ["tokenformer-scratch", "best-scratch"]) if kind == "wins" else (True, [])
        )
        assert (schedule.optimizer.name, schedule.learning_rate.decay) == ("muon", 0.25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--flops", "1e17"], r"law.json: outside the fitted range: flops 1e+17 (fitted: "),
        (["--flops", "1e13", "--params", "9M"], "outside the fitted range: parameters"),
        ([], "--flops: is missing"),
        (["--flops", "1e13", "--tokens", "9M"], "--tokens"),
        (["--flops", "1e13", "--law", "broken.json"], "broken.json: not a law"),
    ],
)
def test_what_the_law_does_not_know_is_refused_with_the_range_and_nothing_is_written(
    tmp_path: Path, options: Sequence[str], message: str
) -> None:
    (tmp_path / "law.json").write_text(law_text("wins"))
    (tmp_path / "broken.json").write_text("{}")
    out = run_here("init", "new.yaml", "--law", "law.json", *options, expect=2, cwd=tmp_path)[1]
    assert message in out
    assert not (tmp_path / "new.yaml").exists()


def test_a_report_shows_predicted_beside_measured_and_what_lies_outside_the_fitted_range() -> None:
    law = Law.model_validate_json(law_text("wins"))
    steps = [(3, 16, 3e6), (3, 32, 3e6)]
    runs = [run_of("inside", steps, 2.5), run_of("outside", [(3, 16, 1e9)], 2.0)]
    runs += [replace(run_of("elsewhere", steps, 2.5), dataset_fingerprint="beef")]
    table: Any = section(runs, law).parts[0]
    outside, inside = table.groups[0].rows
    assert [inside[0].text, inside[1].value] == ["1 of inside", 2.5]
    assert inside[2].value == pytest.approx(loss_of(steps, worth=WORTH["wins"]), abs=0.01)
    assert (inside[4].text, outside[4].text.startswith("flops ")) == ("", True)


def test_the_plot_is_written_whole_or_refused(tmp_path: Path) -> None:
    law = written(tmp_path, "wins")
    run_here("law", "plot", law, "--output", "law.png", cwd=tmp_path)
    assert (tmp_path / "law.png").read_bytes().startswith(b"\x89PNG")
    refused = run_here("law", "plot", law, "--output", "law.gif", expect=2, cwd=tmp_path)[1]
    assert "must end in .png, .svg or .pdf" in refused
