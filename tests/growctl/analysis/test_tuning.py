"""Controls that try several peaks of the learning rate: what is planned, trained and counted."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from growctl.analysis.results import results
from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import plan_run
from growctl.run import runner
from growctl.run.requests import LadderRequest, RunFailed, RunRequest
from growctl.run.screen import Screen
from growctl.runs.directory import RunError
from growctl.runs.find import find_runs
from growctl.schedule.blocks import Schedule
from growctl.text.console import Terminal
from growctl.text.formatting import scientific
from tests.growctl.analysis.ladders import against, grown, noise, scheduled
from tests.growctl.invented_runs import FakeRun
from tests.growctl.schedules import changed, parse

SCRATCH = "quick-control-tokenformer-scratch"
TUNED: dict[str, Any] = {"kind": "tokenformer-scratch", "budgets": [0.5, 1, 2], "peaks": [0.5, 1, 2]}
PEAKS = {f"{SCRATCH}-peak0.5x": 5e-4, SCRATCH: 1e-3, f"{SCRATCH}-peak2x": 2e-3}  # of the runs that tune
LOW, _, HIGH = PEAKS


def ladder(*controls: dict[str, Any]) -> Schedule:
    return parse(changed({"controls": list(controls)})).model_copy(update={"name": "quick"})


@pytest.fixture
def asked(tmp_path: Path) -> LadderRequest:
    return LadderRequest.of(ladder(TUNED), "s.yaml", tmp_path, "quick", True)


def train(request: LadderRequest, patch: pytest.MonkeyPatch, ends: dict[str, float | None]) -> list[tuple[str, float]]:
    """(name, peak) of the controls trained, in order. `ends`: their losses, by default 3.0; None: the run fails."""
    found = []

    def run(own: RunRequest) -> None:
        if own.control:
            found.append((own.name, own.schedule.learning_rate.peak))
            stages = list(map(runner.stage_entry, plan_run(own.schedule)))
            loss = ends.get(own.name, 3.0)
            FakeRun(request.runs_dir, own.name, stages, own.control).train(0, loss, stops=not loss)
            if not loss:
                raise RunFailed("the gradient of step 7 is not finite")

    patch.setattr(runner, "_Runner", lambda own, *_, **__: SimpleNamespace(run=lambda *_: run(own)))
    runner.run(request, Screen(Terminal()))
    return found


def test_the_budget_nearest_to_1_tries_every_peak_and_comes_first() -> None:
    planned = plan_controls(ladder(TUNED | {"budgets": [4, 0.25, 0.8]}))
    tried = [f"{SCRATCH}-0.8x-peak0.5x", f"{SCRATCH}-0.8x", f"{SCRATCH}-0.8x-peak2x"]
    assert [each.name for each in planned] == [*tried, f"{SCRATCH}-4x", f"{SCRATCH}-0.25x"]
    assert [each.schedule.learning_rate.peak for each in planned] == [5e-4, 1e-3, 2e-3, 1e-3, 1e-3]
    assert [(each.tunes, list(each.awaits)) for each in planned] == [(True, [])] * 3 + [(False, tried)] * 2


@pytest.mark.parametrize("changes", [{}, {"budgets": [1]}, {"peaks": [1, 2]}, {"peaks": [1]}], ids=str)
def test_a_size_is_left_to_another_entry_only_if_that_tunes_it_alike(changes: dict[str, Any]) -> None:
    planned = plan_controls(ladder(TUNED | changes, TUNED | {"kind": "best-scratch"}))
    names = {each.name for each in planned}
    assert sum("best-scratch-large" in name for name in names) == (5 if changes else 0)
    assert all(names.issuperset(each.awaits) for each in planned)


@pytest.mark.parametrize(
    ("ends", "peak"),
    [({LOW: 2.9}, 5e-4), ({}, 5e-4), ({HIGH: 2.9}, 2e-3), ({LOW: math.nan, HIGH: None}, 1e-3)],
    ids=["lowest", "the first of equals", "highest", "those that diverged do not win"],
)
def test_the_other_budgets_train_at_the_peak_that_ended_lowest(asked, monkeypatch, ends, peak):
    wanted = [*PEAKS.items(), (f"{SCRATCH}-0.5x", peak), (f"{SCRATCH}-2x", peak)]
    assert train(asked, monkeypatch, ends) == wanted
    assert [(each.name, each.schedule.learning_rate.peak) for each in asked.controls()] == wanted, "a resumed command"


def test_no_other_budget_starts_before_a_peak_has_won(asked: LadderRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=f"{SCRATCH}-2x trains at the peak of {LOW}, .* not all have ended"):
        asked.control(f"{SCRATCH}-2x")
    with pytest.raises(RunError, match="or all have diverged"):
        train(asked, monkeypatch, dict.fromkeys(PEAKS, math.nan))


@pytest.mark.parametrize("best", ["", "-peak0.5x", "-peak2x"])
def test_the_best_peak_of_each_seed_counts_and_the_others_cost_nothing(tmp_path: Path, best: str) -> None:
    """The last seed is best at the ladder's own peak."""
    spent = []
    for seed in range(3):

        def loss(name: str, flops: float, wins: str = best if seed < 2 else "", seed: int = seed) -> float:
            ending = name.partition("-scratch")[2]
            spent.append(flops if "peak" in name else 0)
            return {wins: 2.45, "-0.5x": 2.6, "-2x": 2.3}.get(ending, 2.7) + noise(seed, 1)

        scheduled(tmp_path, f"quick-{seed}", [3.1, 2.35 + noise(seed)], loss, {"seed": seed, "controls": [TUNED]})
    found = results(find_runs(tmp_path))
    means = {arm.name: (round(arm.mean or 0, 1), len(arm.losses)) for arm in found.ladders[0].arms if arm.control}
    kind = SCRATCH.removeprefix("quick-control-")
    assert means == {f"{kind}-0.5x": (2.6, 3), kind: (2.4, 3), f"{kind}-2x": (2.3, 3)}
    [verdict] = found.headlines
    side, said = verdict.opponent_side, " ".join(verdict.cautions)
    assert side
    assert (side.settings_tried, side.costs["flops"]) == (3, pytest.approx(spent[0]))
    assert f"Tuning the opponent cost {scientific(2 * spent[0])} FLOPs more" in said
    edge = {"-peak0.5x": "0.0005", "-peak2x": "0.002"}.get(best)
    assert (f"{kind} ended lowest at {edge}, at the edge" in said) == ("at the edge" in said) == bool(edge)
    assert "repeats" not in said


def test_a_control_at_another_peak_counts_only_beside_one_at_its_ladders(tmp_path: Path) -> None:
    rates: list[dict[str, Any]] = [{"learning_rate.peak": peak} for peak in (1e-3, 2e-3)]
    own = grown(tmp_path, **rates[0])
    against(own, {1.0: 1.33}, **rates[1])
    [verdict] = results(find_runs(tmp_path)).headlines
    assert "it differs from the ladder in learning_rate.peak (0.001 against 0.002)" in verdict.claim
    against(own, {0.5: 1.42}, **rates[0])
    assert [len(arm.losses) for arm in results(find_runs(tmp_path)).ladders[0].arms] == [1, 1, 1]


@pytest.mark.parametrize("own", [None, 1.33])
def test_a_tuned_control_counts_once_all_peaks_and_the_ladders_have_ended(tmp_path: Path, own: float | None) -> None:
    rates: list[dict[str, Any]] = [{"learning_rate.peak": peak} for peak in (1e-3, 2e-3, 5e-4)]
    ladders = [grown(tmp_path, f"quick-{seed}", seed=seed, **rates[0]) for seed in range(2)]
    for seed, ladder in enumerate(ladders):
        against(ladder, {0.5: 1.42}, **rates[0])
        losses = {0: own, 1: 1.50, 2: 1.51} if seed else {1: 1.50, 2: 1.51}
        for number, loss in losses.items():
            run = f"{ladder.path.parents[1]}/at-{number}"
            against(ladder, {1.0: loss}, runs=Path(run), **rates[number])
    moved = [path.rename(tmp_path / f"{path.name}-peak{path.parent.name[-1]}x") for path in tmp_path.glob("at-*/*")]
    assert len(moved) == 5
    arms = {arm.name: arm for arm in results(find_runs(tmp_path)).ladders[0].arms}
    [tuned] = [arm for name, arm in arms.items() if arm.control and "0.5x" not in name]
    assert dict(tuned.losses) == ({} if own is None else {1: 1.33})
    assert tuned.absent[0] == "not tuned to the end"
