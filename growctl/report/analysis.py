"""What ledgers say about growing: cost and quality by stage, and a ladder against its controls at equal loss.

Cost is cumulative training FLOPs: every stage, replayed and failed work included. A control counts with the final
evaluation of a finished run only, each decayed on its own budget. Nothing is extrapolated.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from growctl.ledger import Anomaly, Ledger, LedgerError
from growctl.numbers import scientific

EQUAL_FLOPS_TOLERANCE = 0.02
"""How far from the ladder's FLOPs, as a share of them, a control still counts as one at equal FLOPs."""

BEST_SCRATCH = "best-scratch"
"""The control that trains every size of the ladder from scratch: the bar that growth must really clear."""

HONEST_NUM_BUDGETS = 3
"""Budgets that a control's curve should have at least, each with its own full decay."""


class RunNotFoundError(ValueError):
    """A run was named that is not there."""


@dataclass(frozen=True)
class StageReport:
    """One stage: what it is, what it cost, how good it got. Seconds and FLOPs include replayed and failed work."""

    name: str
    num_parameters: int
    train_tokens: int
    """Data tokens trained in the stage, replayed ones not counted."""
    flops: float
    """Training FLOPs of this stage alone."""
    cumulative_flops: float
    """Training FLOPs of this stage and of all before it."""
    replayed_flops: float
    """Those of `flops` that a later attempt spent again."""
    wall_seconds: float
    device_seconds: float
    replayed_device_seconds: float
    """Those of `device_seconds` that were spent on replayed steps and on attempts that came to none."""
    validation_loss: float | None
    """Nats a token at the stage's end, in fp32 from master weights; None while unfinished."""
    perplexity: float | None
    bits_per_byte: float | None
    loss_before_growth: float | None
    """The previous stage's `validation_loss`; None for the first stage."""
    loss_after_growth: float | None
    """Nats a token at step 0 of this stage; None for the first stage."""
    finished: bool

    @property
    def jump(self) -> float | None:
        """What growing alone did to the loss: after minus before, in nats a token."""
        if self.loss_before_growth is None or self.loss_after_growth is None:
            return None
        return self.loss_after_growth - self.loss_before_growth


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation, placed on the run's cost."""

    stage: str
    point: str
    """`interval` (not decayed), `after_growth` or `final`."""
    cumulative_flops: float
    """Training FLOPs that the run had spent by then."""
    loss: float
    perplexity: float


@dataclass(frozen=True)
class RunReport:
    """One run, as its ledger tells it."""

    name: str
    schedule: str
    control: str | None
    """Kind of control; None for a ladder."""
    control_of: str | None
    """The ladder that a control belongs to."""
    stages: tuple[StageReport, ...]
    points: tuple[EvaluationPoint, ...]
    dataset_fingerprint: str
    directory: Path
    """Where it lies, whatever the ledger calls it."""
    anomalies: tuple[tuple[str, Anomaly], ...] = ()
    """Numbers that went wrong, each with its stage."""

    @property
    def finished(self) -> bool:
        """Whether every stage of the schedule is."""
        return bool(self.stages) and all(stage.finished for stage in self.stages)

    @property
    def final_loss(self) -> float | None:
        """Nats a token at the end of the last stage; None while the run is unfinished or where it diverged."""
        if not self.finished or not math.isfinite(self.stages[-1].perplexity or math.inf):
            return None
        return self.stages[-1].validation_loss

    @property
    def cumulative_flops(self) -> float:
        """Training FLOPs of all stages so far."""
        return self.stages[-1].cumulative_flops if self.stages else 0.0


@dataclass(frozen=True)
class EqualFlops:
    """A ladder and a control at (nearly) the same cost."""

    control_run: str
    flops_ratio: float
    """The control's FLOPs / the ladder's."""
    loss_difference: float
    """Ladder minus control, in nats a token: positive where growing lost."""
    ladder_perplexity: float
    control_perplexity: float


@dataclass(frozen=True)
class Comparison:
    """A ladder against the controls of one kind and size: one curve of loss over FLOPs."""

    control: str
    num_parameters: int | None
    """None for `best-scratch`, where each budget counts with its best size."""
    control_runs: tuple[str, ...]
    """Those that count, by FLOPs: finished, and trained on the ladder's data."""
    flops_to_equal_loss: float | None
    """FLOPs at which the controls' curve reaches the ladder's final loss; None where no two of them bracket it."""
    saving: float | None
    """`flops_to_equal_loss` / the ladder's cumulative FLOPs; below 1 growing cost more."""
    equal_flops: EqualFlops | None
    verdict: tuple[str, ...]
    """The same in plain words, one sentence each."""


def read_run(path: Path) -> RunReport:
    """The report of the run whose ledger is `path`; LedgerError when it cannot be read."""
    with Ledger.open(path, read_only=True) as ledger:
        run = ledger.run()
        stages: list[StageReport] = []
        points: list[EvaluationPoint] = []
        anomalies: list[tuple[str, Anomaly]] = []
        spent, previous_loss = 0.0, None
        for position, stage in enumerate(ledger.stages()):
            cost = ledger.stage_cost(stage.name)
            evaluations = ledger.evaluations(stage.name)
            latest = {evaluation.point: evaluation for evaluation in evaluations}
            finished = ledger.finished(stage.name)
            final, after_growth = latest.get("final") if finished else None, latest.get("after_growth")
            stages.append(
                StageReport(
                    name=stage.name,
                    num_parameters=stage.num_parameters,
                    train_tokens=cost.kept.tokens,
                    flops=cost.total.flops.total,
                    cumulative_flops=spent + cost.total.flops.total,
                    replayed_flops=cost.replayed.flops.total,
                    wall_seconds=cost.total.wall_seconds,
                    device_seconds=cost.total.device_seconds,
                    replayed_device_seconds=cost.replayed.device_seconds,
                    validation_loss=final.loss if final else None,
                    perplexity=final.perplexity if final else None,
                    bits_per_byte=final.bits_per_byte if final else None,
                    loss_before_growth=previous_loss,
                    loss_after_growth=after_growth.loss if after_growth and position else None,
                    finished=finished,
                )
            )
            points += [
                EvaluationPoint(stage.name, e.point, spent + e.flops, e.loss, e.perplexity)
                for e in evaluations
                if e.loss is not None and e.perplexity is not None and math.isfinite(e.perplexity)
            ]
            anomalies += [(stage.name, anomaly) for anomaly in ledger.anomalies(stage.name)]
            spent, previous_loss = stages[-1].cumulative_flops, stages[-1].validation_loss
    return RunReport(
        *(run.name, run.schedule, run.control, run.control_of),
        *(tuple(stages), tuple(points), run.dataset_fingerprint, path.parent),
        tuple(anomalies),
    )


def find_runs(runs_dir: Path, names: Sequence[str] = ()) -> list[RunReport]:
    """The runs called `names`, or all in `runs_dir`; each ladder is followed by its controls.

    Raises RunNotFoundError for a name that is not there and where there are no runs at all, LedgerError where a
    ledger that matters cannot be read.
    """
    paths = {path.parent.name: path for path in sorted(runs_dir.glob("*/ledger.db"))}
    if not paths:
        raise RunNotFoundError(f"there are no runs in {runs_dir} yet")
    for name in names:
        if name not in paths:
            near = difflib.get_close_matches(name, paths, n=3, cutoff=0.4) or list(paths)[:5]
            raise RunNotFoundError(f"no run {name!r} in {runs_dir}; the nearest are {', '.join(near)}")
    runs: dict[str, RunReport] = {}
    for name, path in paths.items():
        try:
            runs[name] = read_run(path)
        except LedgerError:
            if not names or name.startswith(tuple(n if n == name else f"{n}-control-" for n in names)):
                raise
    found: dict[str, RunReport] = {}
    ladders_first = sorted(runs, key=lambda name: (runs[name].control is not None, name))
    for name in names or ladders_first:
        controls = [other for other in runs if runs[other].control_of == runs[name].name]
        controls.sort(key=lambda other: (runs[other].control, runs[other].cumulative_flops))
        found |= {member: runs[member] for member in (name, *controls) if member not in found}
    return list(found.values())


def compare(ladder: RunReport, runs: Sequence[RunReport]) -> list[Comparison]:
    """`ladder` against those of `runs` that are its controls, a comparison for each kind and size of them.

    Of `best-scratch` there is one: each budget counts with the size that ended best, whichever that was.
    """
    curves: dict[tuple[str, int | None], list[RunReport]] = {}
    for run in runs:
        if run.control is not None and run.control_of == ladder.name and run.stages:
            size = None if run.control == BEST_SCRATCH else run.stages[-1].num_parameters
            curves.setdefault((run.control, size), []).append(run)
    if best := curves.get((BEST_SCRATCH, None)):
        # The ladder's last size may have its run as a control of its own kind: it is a size from scratch like the rest.
        sizes = {stage.num_parameters for stage in ladder.stages}
        twins = [key for key in curves if key[0].endswith("-scratch") and key[1] in sizes]
        best += [run for key in twins for run in curves[key]]
    return [_compare(ladder, kind, size, controls) for (kind, size), controls in curves.items()]


def _compare(ladder: RunReport, kind: str, size: int | None, controls: list[RunReport]) -> Comparison:
    points: list[tuple[float, float, RunReport]] = []
    verdict: list[str] = []
    for control in controls:
        if control.final_loss is None:
            reason = "it has no final loss" if control.finished else "it is not finished"
            verdict.append(f"{control.name} does not count: {reason}.")
        elif control.dataset_fingerprint != ladder.dataset_fingerprint:
            verdict.append(f"{control.name} does not count: it was trained on other data.")
        else:
            points.append((control.cumulative_flops, control.final_loss, control))
    points.sort(key=lambda point: point[:2])
    if kind == BEST_SCRATCH and points:
        points, told = _best_of_each_budget(points, len({stage.num_parameters for stage in ladder.stages}))
        verdict += told

    loss, flops = ladder.final_loss, ladder.cumulative_flops
    equal_loss = saving = equal_flops = None
    if loss is None:
        what = "has no final loss" if ladder.finished else "is not finished"
        verdict.insert(0, f"Nothing to compare yet: {ladder.name} {what}.")
    elif not points:
        verdict.insert(0, "Nothing to compare with yet: no control counts.")
    else:
        equal_loss = flops_to_loss([point[:2] for point in points], loss)
        saving = equal_loss / flops if equal_loss is not None else None
        ratio, nearest = min(((p[0] / flops, p) for p in points), key=lambda pair: abs(pair[0] - 1.0))
        if abs(ratio - 1.0) <= EQUAL_FLOPS_TOLERANCE:
            difference = loss - nearest[1]
            perplexities = math.exp(loss), math.exp(nearest[1])
            equal_flops = EqualFlops(nearest[2].name, ratio, difference, *perplexities)
        who = "growing" if kind.endswith("-scratch") else "this ladder"
        sentences = [_equal_loss_verdict(who, points, loss, flops, saving), _equal_flops_verdict(who, equal_flops)]
        verdict = [*sentences, *_caveats(points), *verdict]
    names = tuple(control.name for _, _, control in points)
    return Comparison(kind, size, names, equal_loss, saving, equal_flops, tuple(verdict))


def _best_of_each_budget(
    points: list[tuple[float, float, RunReport]], num_sizes: int
) -> tuple[list[tuple[float, float, RunReport]], list[str]]:
    """Of (FLOPs, loss, run) by FLOPs the best of each budget, and what is to be said of budgets that lack a size."""
    budgets: list[list[tuple[float, float, RunReport]]] = []
    for point in points:
        if budgets and point[0] <= budgets[-1][0][0] * (1 + EQUAL_FLOPS_TOLERANCE):
            budgets[-1].append(point)
        else:
            budgets.append([point])
    lacking = [
        f"Caution: only {len(budget)} of the ladder's {num_sizes} sizes count at {scientific(budget[0][0])} FLOPs."
        for budget in budgets
        if len({point[2].stages[-1].num_parameters for point in budget}) < num_sizes
    ]
    return [min(budget, key=lambda point: point[1]) for budget in budgets], lacking


def flops_to_loss(points: Sequence[tuple[float, float]], loss: float) -> float | None:
    """FLOPs at which a curve of measured (FLOPs, loss), sorted by FLOPs, first comes down to `loss`.

    Between two points the loss is taken as linear in log FLOPs. None where the curve does not come down to `loss`
    between points, or starts below it: that would be extrapolation.
    """
    if not points or points[0][1] < loss:
        return None
    if points[0][1] == loss:
        return points[0][0]
    for (low_flops, low_loss), (high_flops, high_loss) in pairwise(points):
        if low_loss > loss >= high_loss:
            share = (low_loss - loss) / (low_loss - high_loss)
            return math.exp((1.0 - share) * math.log(low_flops) + share * math.log(high_flops))
    return None


def _equal_loss_verdict(
    who: str, points: list[tuple[float, float, RunReport]], loss: float, flops: float, saving: float | None
) -> str:
    if saving is not None:
        told = f"the control needs {scientific(saving * flops)} FLOPs for the ladder's loss of {loss:.4f} nats"
        if saving >= 1.0:
            return f"At equal loss {who} won: {told}, {saving:.2f}x what {who} spent."
        return f"At equal loss {who} lost: {told}, and {who} spent {1.0 / saving:.2f}x as many."
    (first_flops, first_loss, first), (last_flops, _, last) = points[0], points[-1]
    if first_loss < loss:
        lost = f" {who} lost" if first_flops < flops else ""
        return (
            f"At equal loss{lost} (not bracketed): {first.name} ended below the ladder's loss with "
            f"{first_flops / flops:.2f}x its FLOPs, and no smaller budget was run."
        )
    won = f" {who} won" if last_flops > flops else ""
    return (
        f"At equal loss{won} (not bracketed): no control came down to the ladder's loss; the largest budget, "
        f"{last.name}, has {last_flops / flops:.2f}x its FLOPs."
    )


def _equal_flops_verdict(who: str, equal: EqualFlops | None) -> str:
    if equal is None:
        return (
            f"At equal FLOPs, nothing to say: no control's FLOPs are within {EQUAL_FLOPS_TOLERANCE:.0%} of "
            "the ladder's."
        )
    difference = equal.loss_difference
    result = f"{who} {'lost' if difference > 0 else 'won'} {abs(difference):.3f} nats against"
    if abs(difference) < 0.0005:
        result = f"{who} came out level with"
    return (
        f"At equal FLOPs {result} {equal.control_run} (perplexity {equal.ladder_perplexity:.4g} against "
        f"{equal.control_perplexity:.4g}, {equal.flops_ratio:.3f}x the FLOPs)."
    )


def _caveats(points: list[tuple[float, float, RunReport]]) -> list[str]:
    caveats = []
    if len(points) < HONEST_NUM_BUDGETS:
        some = "only 1 control budget" if len(points) == 1 else f"only {len(points)} control budgets"
        caveats.append(f"Caution: {some}; a fair curve has {HONEST_NUM_BUDGETS} or more.")
    if any(high[1] > low[1] for low, high in pairwise(points)):
        caveats.append("Caution: the control's loss rises with its budget somewhere; its first crossing counts.")
    return caveats


_STAGE_KEYS = (
    *("name", "num_parameters", "train_tokens", "flops", "cumulative_flops", "wall_seconds", "validation_loss"),
    *("perplexity", "loss_before_growth", "loss_after_growth", "device_seconds", "replayed_flops"),
    *("replayed_device_seconds", "bits_per_byte", "finished"),
)


def to_json(runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    """`runs` as JSON values: FLOPs, seconds, nats a token. What is unknown or no finite number is null."""
    documents = []
    for run in runs:
        document: dict[str, Any] = {"name": run.name, "schedule": run.schedule, "control": run.control}
        document["stages"] = [{key: _finite(getattr(stage, key)) for key in _STAGE_KEYS} for stage in run.stages]
        document["anomalies"] = [
            {"stage": stage} | {key: _finite(value) for key, value in asdict(anomaly).items()}
            for stage, anomaly in run.anomalies
        ]
        if run.control is None:
            document["comparisons"] = [asdict(comparison) for comparison in compare(run, runs)]
        documents.append(document)
    return documents


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
