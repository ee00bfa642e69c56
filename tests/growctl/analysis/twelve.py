"""Invented ledgers on which a report lied: for each of the twelve items of its review, the smallest that show it."""

import math
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from growctl.ladder.stage_plans import plan_run
from growctl.ledger.exchange import import_ledgers
from growctl.runs.directory import RunSet
from growctl.runs.find import find_runs
from growctl.runs_dir import RunPaths
from model.flops import Flops
from stages.checkpoint.files import write_file
from stages.checkpoint.lineage import Lineage, TrainingCost, TrainingRecord, extended
from stages.checkpoint.manifest import Manifest, sealed_manifest
from stages.stage_dir import MANIFEST_NAME
from tests.growctl.analysis.ladders import (
    CURVE,
    LAST,
    RELEASE,
    WORK,
    against,
    always,
    grown,
    noise,
    scheduled,
    seed_of,
    seeds,
)
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, stage_of
from tests.growctl.schedules import BASE, changed, parse

FINALS = [1.28 + noise(seed) for seed in range(3)]
"""The losses of three seeds that win against CURVE."""

STEEP = {0.25: 1.45, 1.0: 1.25, 4.0: 1.15}
"""Losses of controls from scratch, by budget, in which no budget can be left out."""


def second_control(runs: Path, loss: float, final: float) -> None:
    """1: three seeds with controls, of which one, of 1x, comes again from another machine, with this loss."""
    there = runs.with_name(f"{runs.name}-there")
    for seed in range(3):
        ladder = seed_of(runs, seed, final + noise(seed))
        against(ladder, {budget: its + noise(seed, 1) for budget, its in STEEP.items()})
        against(ladder, {1.0: loss + noise(seed, 2)}, runs=there)
    import_ledgers([there], runs, "zz-")


def rolled_back(runs: Path) -> None:
    """2: three seeds, each rolled back after eight spikes at step 450 of the last stage, which cost 3.86x the rest."""
    for seed in range(3):
        ladder = FakeRun(runs, f"quick-seed-{seed}", [SMALL, LAST], seed=seed, run_set=("quick", {"seed": seed}))
        ladder.train(0, 1.42).train(1, 1.28 + noise(seed), start=1.42, rolled_back_at=[450] * 8)
        against(ladder, {at: loss + noise(seed) for at, loss in {0.5: 1.50, 1.17: 1.28, 2.34: 1.20}.items()})


ROLLBACKS = 8 * 450 * LARGE.num_parameters / WORK
"""The FLOPs of those rollbacks, as a multiple of all others of the ladder."""

RECIPES: dict[str, Mapping[str, Any]] = {
    "anomalies": {"anomalies.spikes": "skip"},
    "ramp_steps": {"stages.1.ramp_steps": 9},
    "mixture": {"stages.1.mixture": {"books": 1.0, "code": 3.0}},
    "tokens": {"stages.1.attention_tokens": 4, "stages.1.ffn_tokens": 16},
}
"""3: what sets the recipe of a seed apart. `tokens`: as many parameters, in the FFN instead of in attention."""

_TWO_SOURCES = [{"name": name, "source": __file__, "weight": 1.0} for name in ("books", "code")]


def recipes(runs: Path, recipe: str) -> None:
    """3: three seeds, one of them with another recipe, each with a control."""
    for seed in range(3):
        changes: dict[str, Any] = {"seed": seed, "controls": [{"kind": SCRATCH}]}
        changes |= {"data": {"vocab_size": 300, "mixture": _TWO_SOURCES}} if recipe == "mixture" else {}
        changes |= RECIPES[recipe] if seed == 2 else {}
        scheduled(runs, f"quick-seed-{seed}", [3.1, 2.35 + noise(seed)], always(2.44), changes)


def swept_ramp(runs: Path) -> None:
    """3: a sweep over `stages.1.ramp_steps` with two seeds, which is best at 6."""
    for steps, final in ((3, 2.30), (6, 2.20), (12, 2.25)):
        for seed in (0, 1):
            overrides = {"stages.1.ramp_steps": steps, "seed": seed}
            run_set = RunSet("ramps", overrides)
            scheduled(runs, f"ramps-{steps}-{seed}", [3.1, final + noise(seed)], always(None), overrides, run_set)


def needless_budget(runs: Path, removed: bool) -> None:
    """4: three seeds, one of them bad, whose control of 0.5x the comparison does not need, and may be `removed`."""
    for seed, final in enumerate((1.20, 1.21, 1.45)):
        controls = {0.5: 1.50, 1.0: 1.31, 2.0: 1.23, 4.0: 1.17}
        if removed and seed == 2:
            del controls[0.5]
        against(seed_of(runs, seed, final), {at: loss + noise(seed, round(at)) for at, loss in controls.items()})


DOCUMENTED = {0.5: (3.3245, 3.4777, 3.3043), 1.0: (2.8960, 2.9494, 2.8899), 2.0: (2.6624, 2.6804, 2.6554)}


def documented(runs: Path) -> None:
    """5: the losses of docs/reading-the-report.md, of a ladder against one size from scratch."""
    for seed, final in enumerate((2.7587, 2.7870, 2.8036)):
        against(seed_of(runs, seed, final), {budget: losses[seed] for budget, losses in DOCUMENTED.items()})


START_FLOPS = 2e9


def each_size_with_start(runs: Path) -> None:
    """6: two finished models from a start checkpoint of 2e9 FLOPs, against each size from scratch.

    From scratch, the loss of each costs 1.5 times all that the model has cost.
    """
    changes: dict[str, Any] = {"start": start_block(START_FLOPS), "releases": "all"}
    changes |= {"controls": [{"kind": "scratch-of-each-size", "budgets": [0.75, 1.5, 3.0]}]}
    small, release, large = (plan.flops.total for plan in plan_run(parse(changed(changes))))
    spent = {"small": START_FLOPS + small + release, "large": START_FLOPS + small + large}

    def loss(name: str, flops: float) -> float:
        size = next(size for size in spent if size in name)
        return 2.0 + (flops / (1.5 * spent[size])) ** -0.5

    scheduled(runs, "quick", [3.2, 3.0, 3.0], loss, changes)


def controls_of_another_ladder(runs: Path) -> None:
    """7: three seeds, whose controls were trained for ladders of the same names that were removed since."""
    seeds(runs, FINALS, CURVE, ladder_id="a ladder that was removed")


def other_stages(runs: Path, kind: str) -> None:
    """7: three seeds, against ways to grow whose stages before the last are not what such a control trains."""
    for seed in range(3):
        ladder = seed_of(runs, seed, FINALS[seed])
        for budget, loss in CURVE.items():
            first = stage_of("0-1m", 1_200_000, round(budget * 600))
            steps = round((budget * WORK - first.num_steps * first.num_parameters) / LARGE.num_parameters)
            name = f"{ladder.entry.name}-control-{kind}-{budget:g}x"
            how = {"kind": kind, "seed": seed, "ladder_id": ladder.entry.run_id}
            grown(runs, name, loss + noise(seed, 1), [first, replace(LAST, num_steps=steps)], **how)


def quarter_of_the_flops(runs: Path) -> None:
    """8: three seeds as good as their only controls, which had a quarter of their FLOPs."""
    seeds(runs, FINALS, {0.25: 1.279})


def a_size_at_one_budget(runs: Path) -> None:
    """8: three seeds, against the best of two sizes, one of which had a quarter of the FLOPs and no other budget."""
    for ladder in seeds(runs, FINALS, CURVE):
        against(ladder, {0.25: 1.45}, "best-scratch", "0-800k", SMALL.num_parameters)


def diverged(runs: Path, ladders: Sequence[int] = (), controls: Sequence[int] = (), num_seeds: int = 6) -> None:
    """9: seeds that win, but for the ladders and the controls of 2x of these seeds, which diverge."""
    for seed in range(num_seeds):
        ladder = seed_of(runs, seed, math.nan if seed in ladders else 1.28 + noise(seed))
        losses = {at: loss + noise(seed, 1) for at, loss in CURVE.items()}
        against(ladder, losses | ({2.0: math.nan} if seed in controls else {}))


def two_ladders(runs: Path) -> None:
    """11: three seeds each of two ladders; the finished models of `one` lie on both sides of the loss of `other`."""
    rate: dict[str, Any] = {"learning_rate.peak": 0.002}
    for seed in range(3):
        seed_of(runs, seed, 1.28 + noise(seed), "one", stages=[SMALL, RELEASE, LAST])
        seed_of(runs, seed, 1.34 + noise(seed, 1), "other", **rate)


def lost_rows(runs: Path, start_flops: float | None) -> None:
    """12: a ladder whose ledger has lost its last row, although its `final/` says what the whole ladder cost."""
    changes: dict[str, Any] = {"controls": [{"kind": SCRATCH}]}
    changes |= {"start": start_block(start_flops)} if start_flops else {}
    ladder = scheduled(runs, "quick", [3.1, 2.3], always(2.5), changes)
    plans = plan_run(parse(BASE))
    history = extended((), "init", {}, num_parameters=1, cost=TrainingCost(flops=Flops(start_flops or 0.0, 0.0, 0.0)))
    for plan in plans:
        cost = history[-1].cost.plus(plan.num_steps, plan.budget_tokens, plan.flops, 60.0)
        paths = RunPaths(ladder.path.parent).stage(plan.index, plan.name)
        history = extended(history, "train", {}, num_parameters=plan.num_parameters, cost=cost)
        lineage = Lineage(operation="train", history=history, training=TrainingRecord(validation_loss=2.3))
        facts: dict[str, Any] = {"kind": "parameters", "model": plan.model, "step": plan.num_steps, "lineage": lineage}
        facts |= {"group_steps": {}, "samples_seen": 0, "seed": 3, "dataset_fingerprint": "f00d", "files": {}}
        manifest = Manifest(**facts, tokenizer_sha256=None)
        write_file(paths.final / MANIFEST_NAME, sealed_manifest(manifest).model_dump_json().encode())
        paths.metrics.touch()
    [whole] = [run for run in find_runs(runs) if run.name == "quick"]
    assert all(stage.cost_is_whole for stage in whole.stages)
    with closing(sqlite3.connect(ladder.path)) as ledger:
        (trigger,) = ledger.execute("SELECT sql FROM sqlite_master WHERE name = 'keeps_on_delete'").fetchone()
        ledger.execute("DROP TRIGGER keeps_on_delete")
        ledger.execute("DELETE FROM record WHERE entry = (SELECT max(entry) FROM work)")
        ledger.execute(trigger)
        ledger.commit()


def measured_otherwise(runs: Path, evaluates: Mapping[str, Any]) -> None:
    """12: three seeds that win, against controls whose losses were measured otherwise."""
    seeds(runs, FINALS, CURVE, evaluates=dict(evaluates))


def start_of_unknown_cost(runs: Path) -> None:
    """12: a ladder from a checkpoint of unknown cost, which its control leaves out of its budget."""
    changes: dict[str, Any] = {"start": start_block(None), "controls": [{"kind": SCRATCH}]}
    scheduled(runs, "quick", [3.1, 2.3], always(2.2), changes)


def start_block(flops: float | None) -> dict[str, Any]:
    """The block `start` of a schedule, as growctl writes it, for a checkpoint of that cost."""
    model = plan_run(parse(BASE))[0].model.model_dump_json()
    base = {"path": "/trained/final", "manifest": "beef", "kind": "parameters", "flops": flops, "model_json": model}
    return {"checkpoint": base["path"], "base": base}


def another_version(runs: Path) -> None:
    """Bad input: the ledger of a control, of another version of growctl."""
    [control] = against(grown(runs), {1.0: 1.33})
    with closing(sqlite3.connect(control.path)) as ledger:
        ledger.execute("CREATE TABLE something_new (x)")


def no_finished_model(runs: Path) -> None:
    """Bad input: a ladder that died in its first stage, with a finished control."""
    against(FakeRun(runs, "quick", [SMALL, LAST]).train(0, None), {1.0: 1.33})


def no_ladder(runs: Path) -> None:
    """Bad input: controls whose ladder is not there."""
    ladder = grown(runs)
    against(ladder, CURVE)
    shutil.rmtree(ladder.path.parent)


def many_rows(runs: Path, num_rows: int) -> None:
    """Bad input: a ladder with that many evaluations in its ledger, and controls."""
    stages = [replace(stage, num_steps=num_rows // 2) for stage in (SMALL, LAST)]
    work = num_rows // 2 * (SMALL.num_parameters + LAST.num_parameters)
    against(grown(runs, stages=stages, num_evaluations=num_rows // 2), CURVE, work=work)
