"""Invented ladders with real ledgers, a runs directory for each case that a report must judge.

Each function of LADDERS fills a runs directory, and returns two runs for `growctl compare`.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import plan_run
from growctl.ledger.entries import BaseEntry, RunEntry, StageEntry
from growctl.ledger.exchange import import_ledgers
from growctl.run.requests import RunRequest
from growctl.run.runner import run_entry, stage_entry
from growctl.run.start import Start
from growctl.runs.directory import RunSet, controls_of
from growctl.runs_dir import RunPaths
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, stage_of
from tests.growctl.schedules import changed, parse

STEP_WORK = SMALL.step_flops.total / SMALL.num_parameters
WORK = SMALL.num_steps * SMALL.num_parameters + LARGE.num_steps * LARGE.num_parameters
"""The cost of an invented ladder, in units of STEP_WORK FLOPs."""

LAST = replace(LARGE, decayed=True)
RELEASE = replace(SMALL, name="0-800k/release", num_steps=100, branch_of=SMALL.name, decayed=True)
CURVE = {0.5: 1.42, 1.0: 1.33, 2.0: 1.26}
"""Losses of controls from scratch, by budget."""


def noise(seed: int, run: int = 0) -> float:
    """A little noise in a loss, the same every time."""
    return 0.0015 * ((7 * seed + 3 * run) % 5 - 2)


def grown(
    runs: Path,
    name: str = "quick",
    final: float | None = 1.28,
    stages: Sequence[StageEntry] = (SMALL, LAST),
    **how: Any,
) -> FakeRun:
    """A ladder that ends at `final`; its other stages end at 1.42, its releases at 1.38."""
    run = FakeRun(runs, name, list(stages), **how)
    for index, stage in enumerate(stages):
        is_last = index == len(stages) - 1
        run.train(index, final if is_last else 1.38 if stage.branch_of else 1.42, start=1.42 if index else 4.0)
    return run


def against(
    ladder: FakeRun,
    losses: Mapping[float, float | None],
    kind: str = SCRATCH,
    size: str = "",
    parameters: int = LARGE.num_parameters,
    work: float = WORK,
    runs: Path | None = None,
    **how: Any,
) -> list[FakeRun]:
    """Controls of `ladder` from scratch, in `runs` or beside it, with these final losses by budget, as multiples of
    `work`. `how`: as FakeRun takes it."""
    known: dict[str, Any] = {"ladder_id": ladder.entry.run_id, "seed": ladder.entry.seed}
    known |= {"run_set": (ladder.entry.group or "", ladder.entry.overrides)}
    made = []
    for budget, loss in losses.items():
        stage = replace(stage_of(size or "0-2m", parameters, round(budget * work / parameters)), decayed=True)
        words = (f"{ladder.entry.name}-control-{kind}", size, "" if budget == 1 else f"{budget:g}x")
        run = FakeRun(runs or ladder.path.parents[1], "-".join(filter(None, words)), [stage], kind, **known | how)
        made.append(run.train(0, loss))
    return made


def seed_of(runs: Path, seed: int, final: float | None, name: str = "quick", **how: Any) -> FakeRun:
    """The ladder of one seed, as `--seeds` starts it."""
    return grown(runs, f"{name}-seed-{seed}", final, seed=seed, run_set=(name, {"seed": seed}), **how)


def seeds(runs: Path, finals: Sequence[float], losses: Mapping[float, float], **how: Any) -> list[FakeRun]:
    """A ladder for each of `finals`, each with controls of these losses, `how` they are, and some noise."""
    ladders = [seed_of(runs, seed, final) for seed, final in enumerate(finals)]
    for seed, ladder in enumerate(ladders):
        against(ladder, {at: loss + noise(seed, run) for run, (at, loss) in enumerate(losses.items(), 1)}, **how)
    return ladders


_SPLIT = SimpleNamespace(num_documents=90, num_tokens=40_000, text_hash="a")
_DATASET: Any = SimpleNamespace(
    fingerprint="f00d", tokenizer_sha256="b", splits={"train": _SPLIT, "validation": _SPLIT}, sources=()
)


def always(loss: float | None) -> Callable[[str, float], float | None]:
    """The same loss for every control, as `scheduled` takes it."""
    return lambda name, flops: loss


def scheduled(
    runs: Path,
    name: str,
    finals: Sequence[float | None],
    control: Callable[[str, float], float | None],
    changes: dict[str, Any],
    run_set: RunSet | None = None,
) -> FakeRun:
    """A ladder of the schedule BASE with `changes`, and its controls, recorded as the runner records them.

    `finals`: the losses of its stages and releases; those left out have not begun. `control`: the loss of each of its
    controls, which it gets with its FLOPs; None: it has not begun.
    """

    def recorded(request: RunRequest, ladder: RunEntry | None) -> FakeRun:
        schedule, run_id = request.schedule, f"the id of {request.name}"
        entry = run_entry(request, run_id, "data", _DATASET, ladder, Start.of(schedule, runs / "keys"))
        run = FakeRun(runs, request.name, list(map(stage_entry, plan_run(schedule))), entry=entry)
        text = yaml.safe_dump(schedule.model_dump(mode="json"), sort_keys=False)
        (run.path.parent / "schedule.yaml").write_text(text)
        return run

    schedule = parse(changed({"controls": []} | changes)).model_copy(update={"name": name})
    run = recorded(RunRequest(name, schedule, "s.yaml", run_set=run_set), None)
    for index, final in enumerate(finals):
        run.train(index, final, start=finals[index - 1] or 4.0)
    ladder = run.entry
    for number in range(len(plan_controls(schedule))):
        plan = controls_of(schedule, (), RunPaths(runs / name))[number]
        flops = sum(stage.flops.total for stage in plan_run(plan.schedule))
        if loss := control(plan.name, flops):
            request = RunRequest(plan.name, plan.schedule, "s.yaml", plan.kind, name, run_set)
            recorded(request, ladder).train(0, loss)
    return run


def curve(runs: Path) -> tuple[str, str]:
    """One seed and three budgets from scratch."""
    controls = against(grown(runs, validation=(90, 40_000)), CURVE, validation=(90, 40_000))
    return "quick", controls[1].entry.name


def interrupted(runs: Path) -> tuple[str, str]:
    """Kills of the ladder and of a control, which repeat work, with activation checkpointing."""
    machine = {"recomputed_step_flops": 1e9}
    ladder = FakeRun(runs, "quick", [SMALL, LAST], machine=machine)
    ladder.train(0, 1.42).train(1, 1.28, start=1.42, killed_at=480)
    against(ladder, {0.5: 1.42, 2.0: 1.26})
    stage = replace(stage_of("0-2m", 2_400_000, 933), decayed=True)
    control = FakeRun(runs, f"quick-control-{SCRATCH}", [stage], SCRATCH, ladder_id=ladder.entry.run_id)
    control.train(0, 1.33, killed_at=279)
    return "quick", control.entry.name


def reuse(runs: Path) -> tuple[str, str]:
    """A first stage that another ladder paid for, and a control that reuses it too, at its full price."""
    first = grown(runs, "first", 1.30, [SMALL, replace(LAST, num_steps=300)])
    ladder = FakeRun(runs, "quick", [SMALL, LAST]).train(0, 1.42, reused_from="first").train(1, 1.28, start=1.42)
    against(ladder, CURVE)
    jump = FakeRun(runs, "quick-control-single-jump", [SMALL, LAST], "single-jump", ladder_id=ladder.entry.run_id)
    jump.train(0, 1.42, reused_from="first").train(1, 1.285, start=1.42)
    return first.entry.name, "quick"


def start(runs: Path, flops: float | None = 4e12, ungrown: Mapping[float, float] | None = None) -> tuple[str, str]:
    """A ladder from a trained model, against growing it in a single jump, training from scratch, and training it on."""
    base = BaseEntry("trained/final", "beef", "trained, stage 0-400k", 400_000, flops, 1.9, 5000)
    how: dict[str, Any] = {"start.manifest": "beef", "base": base}
    ladder = FakeRun(runs, "quick", [SMALL, LAST], **how)
    ladder.train(0, 1.42, start=1.9).train(1, 1.28, start=1.42)
    against(ladder, CURVE)
    against(ladder, ungrown or {}, "ungrown", parameters=400_000, **how)
    stage = replace(LAST, name="0-2m", num_steps=round(WORK / LARGE.num_parameters))
    how["ladder_id"] = ladder.entry.run_id
    jump = FakeRun(runs, "quick-control-single-jump", [stage], "single-jump", **how).train(0, 1.29, start=1.9)
    return "quick", jump.entry.name


def ungrown(runs: Path) -> tuple[str, str]:
    """The start checkpoint, whose cost nothing says, trained on at its own size."""
    start(runs, flops=None, ungrown={0.5: 1.45, 1.0: 1.36, 2.0: 1.31})
    return "quick", "quick-control-ungrown"


def family(runs: Path) -> tuple[str, str]:
    """Two finished models, one of them a release, against each size from scratch at its own cost."""
    ladder = grown(runs, stages=[SMALL, RELEASE, LAST])
    released = (SMALL.num_steps + RELEASE.num_steps) * SMALL.num_parameters
    small = {0.5: 1.45, 1.0: 1.40, 2.0: 1.34}
    against(ladder, small, "scratch-of-each-size", "0-800k", SMALL.num_parameters, released)
    against(ladder, CURVE, "scratch-of-each-size", "1-2m")
    return "quick", "quick-control-scratch-of-each-size-1-2m"


def best_scratch(runs: Path) -> tuple[str, str]:
    """The best size from scratch, and one size at every budget."""
    ladder = grown(runs)
    against(ladder, {0.5: 1.40, 1.0: 1.34, 2.0: 1.31}, "best-scratch", "0-800k", SMALL.num_parameters)
    against(ladder, CURVE)
    return "quick", "quick-control-best-scratch-0-800k"


def several_seeds(runs: Path) -> tuple[str, str]:
    """Three seeds that win, with a control of one seed still to finish and one seed that is repeated."""
    ladders = seeds(runs, [1.281, 1.276, 1.29], CURVE)
    grown(runs, "quick-again", 1.30, seed=0, run_set=("quick", {"seed": 0}))
    against(ladders[0], {4.0: None})
    return "quick-seed-0", "quick-seed-1"


def within_noise(runs: Path) -> tuple[str, str]:
    """Three seeds that differ by more than the ladder and its controls do."""
    ladders = seeds(runs, [1.26, 1.38, 1.31], {1.0: 1.33})
    return "quick-seed-0", f"{ladders[0].entry.name}-control-{SCRATCH}"


def sweep(runs: Path) -> tuple[str, str]:
    """A sweep over the learning rate with two seeds, and a control at each point."""
    for peak, final in ((1e-3, 2.30), (2e-3, 2.25)):
        for seed in (0, 1):
            point = {"learning_rate.peak": peak, "seed": seed}
            finals, control = [3.1, final + noise(seed)], always(final + noise(seed, 1) + 0.05)
            changes = point | {"controls": [{"kind": SCRATCH}]}
            scheduled(runs, f"rates-{peak:g}-{seed}", finals, control, changes, RunSet("rates", point))
    return "rates-0.001-0", "rates-0.002-0"


def mixture(runs: Path) -> tuple[str, str]:
    mixed: dict[str, Any] = {"data.mixture": {"books": 3.0, "code": 1.0}}
    ladder = grown(runs, "mixed", **mixed)
    return "mixed", against(ladder, {1.0: 1.33}, **mixed)[0].entry.name


def diverged(runs: Path) -> tuple[str, str]:
    """Three seeds: the ladder diverges with the last one, after a spike with the first, a control with the second."""
    for seed, final in enumerate((1.281, 1.276, math.nan)):
        ladder = FakeRun(runs, f"quick-seed-{seed}", [SMALL, LAST], seed=seed, run_set=("quick", {"seed": seed}))
        ladder.train(0, 1.42).train(1, final, start=1.42, rolled_back_at=() if seed else (420, 480))
        against(ladder, {1.0: 1.33, 2.0: math.nan if seed == 1 else 1.26})
    return "quick-seed-0", "quick-seed-2"


def imported(runs: Path) -> tuple[str, str]:
    """A copy and its original, a copy that was trained further, and ledgers of another machine, one of them twice."""
    ladder = grown(runs, "here", 1.30)
    shutil.copytree(runs / "here", runs / "here-copy")
    unfinished = FakeRun(runs, "more", [SMALL, LAST]).train(0, 1.42)
    shutil.copytree(runs / "more", runs / "more-copy")
    unfinished.train(1, 1.28, start=1.42)
    there = runs.with_name(f"{runs.name}-there")
    against(grown(there, final=1.28), CURVE)
    control, *_ = against(ladder, {1.0: 1.34}, runs=there)
    import_ledgers([there], runs, "there-")
    import_ledgers([control.path], runs)
    return "here", "there-quick"


def growing_otherwise(runs: Path) -> tuple[str, str]:
    """A ladder of three sizes against a single jump, and against growing as the official code does."""
    middle = stage_of("1-1m", 1_200_000, 400)
    stages = [SMALL, middle, replace(LAST, name="2-2m")]
    known = {"ladder_id": grown(runs, stages=stages).entry.run_id}
    jump = [SMALL, replace(LAST, num_steps=800)]
    grown(runs, "quick-control-single-jump", 1.285, jump, kind="single-jump", **known)
    twice = [replace(stage, num_steps=2 * stage.num_steps) for stage in stages]
    for name, final, own in (("official-growth", 1.31, stages), ("official-growth-2x", 1.27, twice)):
        grown(runs, f"quick-control-{name}", final, own, kind="official-growth", **known)
    return "quick", "quick-control-single-jump"


def never_decays(runs: Path) -> tuple[str, str]:
    """Controls that never decay, one worse and one better than the ladder; and a ladder that never does."""
    ladder = grown(runs)
    against(ladder, CURVE, decays=False)
    against(grown(runs, "trunk", 1.31, [SMALL, LARGE], decays=False), CURVE)
    return "quick", "trunk"


def datasets(runs: Path) -> tuple[str, str]:
    sets = (("bytes", 1.28, "f00d", "t", "v"), ("words", 1.9, "beef", "u", "v"), ("other", 1.9, "cafe", "t", "w"))
    for name, final, fingerprint, tokenizer, text in sets:
        hashes: Any = {"data.tokenizer": tokenizer, "data.train_text": f"r{text}", "data.validation_text": text}
        grown(runs, name, final, data=fingerprint, **hashes)
    return "bytes", "words"


def unfinished(runs: Path) -> tuple[str, str]:
    """A ladder in its last stage and one that has ended, whose controls are still to come."""
    changes = {"controls": [{"kind": SCRATCH, "budgets": [0.5, 1.0]}, {"kind": "best-scratch"}]}
    scheduled(runs, "going", [3.1, None], always(None), changes)
    scheduled(runs, "ended", [3.1, 2.3], lambda own, _: 2.5 if "0.5x" in own else None, changes | {"seed": 4})
    FakeRun(runs, "begun", [SMALL, LAST])
    return "going", "ended"


def no_controls(runs: Path) -> tuple[str, str]:
    """Two ladders on the same data without controls, one with a release, compared with each other."""
    for seed in (0, 1):
        seed_of(runs, seed, 1.28 + noise(seed), "one", stages=[SMALL, RELEASE, LAST])
        seed_of(runs, seed, 1.34 + noise(seed, 1), "other", **{"learning_rate.peak": 0.002})
    return "one-seed-0", "other-seed-0"


def costs(runs: Path) -> tuple[str, str]:
    """Wall-clock, money, energy and peak speed; one control was trained on other devices, without a price."""
    gpu = {"device": "NVIDIA H100 80GB HBM3", "num_devices": 4, "price_per_device_hour": 2.5, "peak_flops": 1e13}
    ladder = grown(runs, machine=gpu, tokens_per_second=50_000.0)
    against(ladder, {0.5: 1.42, 2.0: 1.26}, machine=gpu, tokens_per_second=50_000.0)
    against(ladder, {1.0: 1.33}, machine=gpu | {"num_devices": 2}, tokens_per_second=25_000.0)
    against(ladder, {4.0: 1.22}, kind="decoder-scratch")
    return "quick", f"quick-control-{SCRATCH}"


_EACH = (
    *(curve, interrupted, reuse, start, ungrown, family, best_scratch, several_seeds, within_noise),
    *(sweep, mixture, diverged, imported, growing_otherwise, never_decays, datasets, unfinished, no_controls, costs),
)
LADDERS: dict[str, Callable[[Path], tuple[str, str]]] = {ladder.__name__: ladder for ladder in _EACH}
