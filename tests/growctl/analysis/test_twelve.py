"""The twelve ways in which a report lied, each with the verdict that is right.

Simulations (benchmarks/judge_coverage.py) judge how often intervals and verdicts hold.
"""

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.analysis.judge import Verdict
from growctl.analysis.results import results
from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import plan_run
from growctl.ledger.exchange import import_ledgers
from growctl.runs.directory import RunSet
from growctl.runs.find import find_runs
from growctl.runs_dir import RunPaths
from model.flops import Flops
from stages.checkpoint.files import write_file
from stages.checkpoint.lineage import Lineage, TrainingCost, TrainingRecord, extended
from stages.checkpoint.manifest import Manifest
from stages.checkpoint.sealed import seal
from stages.stage_dir import MANIFEST_NAME
from tests.growctl.analysis.ladders import CURVE, LAST, WORK, against, always, grown, noise, scheduled, seed_of, seeds
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, stage_of
from tests.growctl.runs import run_here
from tests.growctl.schedules import BASE, changed, parse

pytestmark = pytest.mark.slow

FINALS = [1.28 + noise(seed) for seed in range(3)]
"""The losses of three seeds that win against CURVE."""

START_FLOPS = 2e9


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def verdict_of(runs: Path, name: str = "quick") -> Verdict:
    """The verdict on the ladder `name`, or on the seeds that it stands for."""
    found = results(find_runs(runs))
    names = {run: each.name for each in found.ladders for run in each.arms[0].runs.values()}
    [verdict] = [each for each in found.headlines if each.ladder == names.get(name, name)]
    return verdict


def ratio_of(verdict: Verdict) -> float | None:
    """What the opponent needs for the ladder's loss / what the ladder has cost."""
    return verdict.multiplier.estimate if verdict.multiplier else None


def said_of(verdict: Verdict) -> str:
    return " ".join([verdict.claim, *verdict.cautions])


def compared(runs: Path, a: str, b: str) -> tuple[str | None, set[str]]:
    """The outcome for the first run, and the keys of the schedule in which `compare` says that they differ."""
    pair = json.loads(run_here("compare", a, b, "--runs-dir", runs, "--json")[0])
    return pair["verdict"] and pair["verdict"]["outcome"], {each["key"] for each in pair["differences"]}


def from_start(flops: float | None = START_FLOPS) -> dict[str, Any]:
    """The block `start` of a schedule, as growctl writes it, for a checkpoint of that cost."""
    model = plan_run(parse(BASE))[0].model.model_dump_json()
    base = {"path": "/trained/final", "manifest": "beef", "kind": "parameters", "flops": flops}
    return {"start": {"checkpoint": base["path"], "base": base | {"model_json": model}}}


@pytest.mark.parametrize(("loss", "final"), [(1.44, 1.27), (1.20, 1.22)], ids=["worse", "better"])
def test_of_two_controls_with_the_same_label_the_best_counts(runs: Path, loss: float, final: float) -> None:
    """The second one comes from another machine. No budget can be left out of the curve."""
    there = runs.with_name(f"{runs.name}-there")
    for seed in range(3):
        ladder = seed_of(runs, seed, final + noise(seed))
        against(ladder, {budget: its + noise(seed, 1) for budget, its in {0.25: 1.45, 1.0: 1.25, 4.0: 1.15}.items()})
        against(ladder, {1.0: loss + noise(seed, 2)}, runs=there)
    import_ledgers([there], runs, "zz-")
    assert verdict_of(runs).outcome == "lost"


def test_rollbacks_after_its_own_spikes_are_costs_of_the_ladder(runs: Path) -> None:
    for seed in range(3):
        ladder = FakeRun(runs, f"quick-seed-{seed}", [SMALL, LAST], seed=seed, run_set=("quick", {"seed": seed}))
        ladder.train(0, 1.42).train(1, 1.28 + noise(seed), start=1.42, rolled_back_at=[450] * 8)
        against(ladder, {at: loss + noise(seed) for at, loss in {0.5: 1.50, 1.17: 1.28, 2.34: 1.20}.items()})
    found = verdict_of(runs)
    assert found.outcome == "lost"
    rollbacks = 8 * 450 * LARGE.num_parameters / WORK
    assert ratio_of(found) == pytest.approx(1.17 / (1 + rollbacks), rel=0.02)


_TWO_SOURCES = [{"name": name, "source": __file__, "weight": 1.0} for name in ("books", "code")]
RECIPES: dict[str, Mapping[str, Any]] = {
    "anomalies": {"anomalies.spikes": "skip"},
    "ramp_steps": {"stages.1.ramp_steps": 9},
    "mixture": {"stages.1.mixture": {"books": 1.0, "code": 3.0}},
    "tokens": {"stages.1.attention_tokens": 4, "stages.1.ffn_tokens": 16},  # as many parameters
}
"""What sets the recipe of a seed apart."""


@pytest.mark.parametrize("recipe", RECIPES)
def test_another_recipe_is_no_further_seed_and_compare_names_its_keys(runs: Path, recipe: str) -> None:
    for seed in range(3):
        changes: dict[str, Any] = {"seed": seed, "controls": [{"kind": SCRATCH}]}
        changes |= {"data": {"vocab_size": 300, "mixture": _TWO_SOURCES}} if recipe == "mixture" else {}
        changes |= RECIPES[recipe] if seed == 2 else {}
        scheduled(runs, f"quick-seed-{seed}", [3.1, 2.35 + noise(seed)], always(2.44), changes)
    assert [verdict_of(runs, f"quick-seed-{seed}").seeds for seed in range(3)] == [(0, 1), (0, 1), (2,)]
    assert verdict_of(runs, "quick-seed-0").ladder == "quick"
    assert compared(runs, "quick-seed-0", "quick-seed-2")[1] >= set(RECIPES[recipe])


def test_a_sweep_over_a_key_of_a_stage_has_its_points_and_its_best_one(runs: Path) -> None:
    for steps, final in ((3, 2.30), (6, 2.20), (12, 2.25)):
        for seed in (0, 1):
            overrides = {"stages.1.ramp_steps": steps, "seed": seed}
            run_set = RunSet("ramps", overrides)
            scheduled(runs, f"ramps-{steps}-{seed}", [3.1, final + noise(seed)], always(None), overrides, run_set)
    [sweep] = results(find_runs(runs)).sweeps
    [best] = [point.values for point in sweep.points if point.name == sweep.best]
    assert (len(sweep.points), best) == (3, {"stages.1.ramp_steps": 6})


@pytest.mark.parametrize("removed", [False, True])
def test_a_budget_that_one_seed_lacks_drops_no_seed(runs: Path, removed: bool) -> None:
    for seed, final in enumerate((1.20, 1.21, 1.45)):
        controls = {0.5: 1.50, 1.0: 1.31, 2.0: 1.23, 4.0: 1.17}
        if removed and seed == 2:
            del controls[0.5]
        against(seed_of(runs, seed, final), {at: loss + noise(seed, round(at)) for at, loss in controls.items()})
    found = verdict_of(runs)
    assert (found.outcome, found.seeds) == ("within the noise", (0, 1, 2))


def test_each_size_from_scratch_has_the_flops_that_a_ladder_spends_on_it_from_its_start_checkpoint_on(runs: Path):
    """From scratch, the loss of each of two models costs 1.5 times all that the model has cost since then."""
    controls = [{"kind": "scratch-of-each-size", "budgets": [0.75, 1.5, 3.0]}]
    changes = from_start() | {"releases": "all", "controls": controls}
    ladder = parse(changed(changes))
    small, release, large = (plan.flops.total for plan in plan_run(ladder))
    spent = {"small": small + release, "large": small + large}

    def loss(name: str, flops: float) -> float:
        size = next(size for size in spent if size in name)
        return 2.0 + (flops / (1.5 * spent[size])) ** -0.5

    scheduled(runs, "quick", [3.2, 3.0, 3.0], loss, changes)
    [family] = results(find_runs(runs)).families
    ratios = {model.ladder.partition(" of ")[0]: ratio_of(model) for model in family.models}
    assert ratios == pytest.approx({"small/release": 1.5, "large": 1.5}, rel=0.02)
    planned = {sum(plan.flops.total for plan in plan_run(each.schedule)) for each in plan_controls(ladder)}
    expected = [budget * flops for flops in spent.values() for budget in (0.75, 1.5, 3.0)]
    assert sorted(planned) == pytest.approx(sorted(expected), rel=0.04)  # they have few steps


def test_a_control_that_was_trained_for_another_ladder_does_not_count(runs: Path) -> None:
    seeds(runs, FINALS, CURVE, ladder_id="a ladder that was removed")
    assert verdict_of(runs).outcome == "unknown"


@pytest.mark.parametrize("kind", ["single-jump", "official-growth"])
def test_a_control_that_grows_counts_only_with_the_stages_of_its_kind(runs: Path, kind: str) -> None:
    for seed in range(3):
        ladder = seed_of(runs, seed, FINALS[seed])
        for budget, loss in CURVE.items():
            first = stage_of("0-1m", 1_200_000, round(budget * 600))
            steps = round((budget * WORK - first.num_steps * first.num_parameters) / LARGE.num_parameters)
            name = f"{ladder.entry.name}-control-{kind}-{budget:g}x"
            how = {"kind": kind, "seed": seed, "ladder_id": ladder.entry.run_id}
            grown(runs, name, loss + noise(seed, 1), [first, replace(LAST, num_steps=steps)], **how)
    assert verdict_of(runs).outcome == "unknown"


def test_a_quarter_of_the_flops_decides_nothing(runs: Path) -> None:
    seeds(runs / "one", FINALS, {0.25: 1.279})
    for ladder in seeds(runs / "two", FINALS, CURVE):
        against(ladder, {0.25: 1.45}, "best-scratch", "0-800k", SMALL.num_parameters)
    for folder in ("one", "two"):
        found = verdict_of(runs / folder)
        assert (found.outcome, "0.25x" in said_of(found)) == ("unknown", folder == "one")


@pytest.mark.parametrize("start_flops", [0.0, START_FLOPS])
def test_a_ledger_that_lost_rows_contradicts_the_cost_of_the_final_checkpoint(runs: Path, start_flops: float) -> None:
    changes = {"controls": [{"kind": SCRATCH}]} | (from_start() if start_flops else {})
    ladder = scheduled(runs, "quick", [3.1, 2.3], always(2.5), changes)
    history = extended((), "init", {}, num_parameters=1, cost=TrainingCost(flops=Flops(start_flops, 0.0, 0.0)))
    for plan in plan_run(parse(BASE)):
        cost = history[-1].cost.plus(plan.num_steps, plan.budget_tokens, plan.flops, 60.0)
        paths = RunPaths(ladder.path.parent).stage(plan.index, plan.name)
        history = extended(history, "train", {}, num_parameters=plan.num_parameters, cost=cost)
        lineage = Lineage(operation="train", history=history, training=TrainingRecord(validation_loss=2.3))
        facts: dict[str, Any] = {"kind": "parameters", "model": plan.model, "step": plan.num_steps, "lineage": lineage}
        facts |= {"group_steps": {}, "samples_seen": 0, "seed": 3, "dataset_fingerprint": "f00d", "files": {}}
        manifest = Manifest(**facts, tokenizer_sha256=None)
        write_file(paths.final / MANIFEST_NAME, seal(manifest).model_dump_json().encode())
        paths.metrics.touch()
    [whole] = [run for run in find_runs(runs) if run.name == "quick"]
    assert all(stage.cost_is_whole for stage in whole.stages)
    with closing(sqlite3.connect(ladder.path)) as ledger:
        (trigger,) = ledger.execute("SELECT sql FROM sqlite_master WHERE name = 'keeps_on_delete'").fetchone()
        ledger.execute("DROP TRIGGER keeps_on_delete")
        ledger.execute("DELETE FROM record WHERE entry = (SELECT max(entry) FROM work)")
        ledger.execute(trigger)
        ledger.commit()
    found = verdict_of(runs)
    assert (found.outcome, "ledger" in said_of(found)) == ("unknown", True)


@pytest.mark.parametrize("evaluates", [{"precision": "bf16"}, {"num_tokens": 2500}], ids=str)
def test_losses_in_another_precision_or_on_other_tokens_are_not_compared(runs: Path, evaluates: Any) -> None:
    seeds(runs, FINALS, CURVE, evaluates=dict(evaluates))
    assert verdict_of(runs).outcome == "unknown"
    assert compared(runs, "quick-seed-0", f"quick-seed-0-control-{SCRATCH}")[0] is None


def test_controls_without_their_ladder_name_it_on_the_first_screen(runs: Path) -> None:
    ladder = grown(runs)
    against(ladder, CURVE)
    shutil.rmtree(ladder.path.parent)
    out, _ = run_here("report", "--runs-dir", runs)
    assert "ladder quick" in out.partition("Stages")[0]


def test_every_evaluation_of_a_long_run_is_read(runs: Path) -> None:
    """With 100,000 rows too, which take too long to write here."""
    steps = 1000
    stages = [replace(stage, num_steps=steps) for stage in (SMALL, LAST)]
    work = steps * (SMALL.num_parameters + LAST.num_parameters)
    against(grown(runs, stages=stages, num_evaluations=steps), CURVE, work=work)
    assert ratio_of(verdict_of(runs)) == pytest.approx(1.6, abs=0.1)
