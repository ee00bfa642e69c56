"""Verdicts on growing: savings, losses, incomparable runs, and no flattering results."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.analysis.find import find_runs
from growctl.analysis.runs import RunReport, StageReport
from growctl.ledger.ledger import LedgerError
from growctl.report.documents import report_document
from growctl.report.results import verdicts
from growctl.report.sections import remarks
from growctl.text.formatting import scientific
from growctl.verdicts.compare import Comparison, Point, compare, flops_to_loss
from growctl.verdicts.verdict import verdict
from tests.growctl.invented_runs import (
    LARGE,
    SCRATCH,
    SMALL,
    FakeRun,
    control,
    from_scratch,
    ladder,
    only_comparison,
    said,
    stage_of,
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_between_two_budgets_the_saving_is_interpolated_in_log_flops(runs: Path) -> None:
    ladder(runs)
    spent = 1000 * 800_000 + 600 * 2_400_000  # in units of 5500 FLOPs
    for budget, loss in ((700, 1.40), (1400, 1.32), (2800, 1.24)):
        control(runs, budget, loss)
    comparison = only_comparison(runs)
    equal = math.sqrt(1400 * 2800) * 2_400_000
    assert comparison.flops_to_equal_loss == pytest.approx(equal * 5500)
    assert comparison.saving == pytest.approx(equal / spent)
    assert comparison.control_runs == tuple(f"quick-control-{SCRATCH}-{budget}" for budget in (700, 1400, 2800))
    assert "growing won" in said(comparison)
    assert f"{equal / spent:.2f}x" in said(comparison)
    assert "Caution" not in said(comparison)


def test_a_loss_for_growing_is_reported(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.30)
    control(runs, 933, 1.268)  # 2240e6 units of FLOPs, against 2239.2e6
    comparison = only_comparison(runs)
    assert comparison.saving is not None
    assert comparison.saving < 1
    assert f"At equal loss growing lost: the control needs {scientific(comparison.flops_to_equal_loss or 0)}" in said(
        comparison
    )
    assert comparison.equal_flops is not None
    assert comparison.equal_flops.loss_difference == pytest.approx(0.012)
    assert "growing lost 0.012 nats against quick-control-tokenformer-scratch-933" in said(comparison)
    assert "(perplexity 3.597 against 3.554, 1.000x the FLOPs)" in said(comparison)
    assert "only 2 control budgets" in said(comparison)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((1.40, 1.30), "At equal loss growing won (not bracketed): no control reached the ladder's loss"),
        ((1.27, 1.20), "At equal loss growing lost (not bracketed): quick-control-tokenformer-scratch-500 ended below"),
    ],
)
def test_outside_the_measured_budgets_nothing_is_extrapolated(
    runs: Path, losses: tuple[float, float], words: str
) -> None:
    ladder(runs)
    for budget, loss in zip((500, 2000), losses, strict=True):
        control(runs, budget, loss)
    comparison = only_comparison(runs)
    assert (comparison.flops_to_equal_loss, comparison.saving) == (None, None)
    assert "not bracketed" in said(comparison)
    assert words in said(comparison)


@given(
    curve=st.lists(st.tuples(st.floats(1e10, 1e20), st.floats(0.5, 5.0)), min_size=1, max_size=6),
    loss=st.floats(0.5, 5.0),
)
def test_flops_to_equal_loss_lie_between_measured_points(curve: list[tuple[float, float]], loss: float) -> None:
    equal = flops_to_loss([Point("a", 1, flops, its) for flops, its in curve], loss)
    if equal is None:
        assert loss < min(its for _, its in curve)
        return
    assert any(its <= loss for flops, its in curve if flops >= equal.flops * (1 - 1e-9))
    above = [flops for flops, its in curve if flops <= equal.flops * (1 + 1e-9) and its >= loss]
    assert bool(above) >= equal.bracketed


def test_a_control_whose_loss_rises_counts_at_its_first_crossing_with_a_caution(runs: Path) -> None:
    ladder(runs)
    for budget, loss in ((500, 1.35), (1000, 1.25), (2000, 1.33), (4000, 1.20)):
        control(runs, budget, loss)
    comparison = only_comparison(runs)
    assert comparison.flops_to_equal_loss == pytest.approx(500 * 2**0.7 * 2_400_000 * 5500)
    assert "a larger budget for one size ended with a higher loss" in said(comparison)


def test_controls_that_do_not_count_are_named_with_the_reason(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.30)
    control(runs, 900, None)
    control(runs, 2000, 1.20, data="other")
    comparison = only_comparison(runs)
    assert comparison.control_runs == (f"quick-control-{SCRATCH}-500",)
    assert comparison.saving is None
    assert f"quick-control-{SCRATCH}-900 does not count: it is not finished" in said(comparison)
    assert f"quick-control-{SCRATCH}-2000 does not count: it was trained on other data" in said(comparison)


def test_an_unfinished_ladder_an_unfinished_control_and_none_at_all(runs: Path) -> None:
    ladder(runs, None)
    control(runs, 500, 1.30)
    comparison = only_comparison(runs)
    assert comparison.saving is comparison.equal_flops is None
    assert said(comparison).startswith("Nothing to compare yet: quick is not finished.")
    ladder(runs, name="alone")
    found = find_runs(runs, ["alone"])
    assert compare(found[0], found) == []
    assert "no controls" in verdicts(found)[0][1][0]
    ladder(runs, name="early")
    control(runs, 500, None, of="early")
    found = find_runs(runs, ["early"])
    assert "no control counts" in verdicts(found)[0][1][0]


def test_each_kind_and_size_of_controls_is_a_separate_curve(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.30)
    control(runs, 500, 1.30, kind="transformer-scratch")
    small = stage_of("0-800k", 800_000, 2800)
    FakeRun(runs, f"quick-control-{SCRATCH}-0-800k-2800", [small], SCRATCH).train(0, 1.2)
    found = find_runs(runs)
    curves = {(c.control, c.num_parameters, len(c.control_runs)) for c in compare(found[0], found)}
    assert curves == {(SCRATCH, 2_400_000, 1), (SCRATCH, 800_000, 1), ("transformer-scratch", 2_400_000, 1)}


def test_against_another_growth_method_the_verdict_names_this_ladder(runs: Path) -> None:
    ladder(runs, 1.28)
    control(runs, 933, 1.27, kind="single-jump")
    assert "At equal FLOPs this ladder lost 0.010 nats against quick-control-single-jump-933" in said(
        only_comparison(runs)
    )
    assert "growing" not in said(only_comparison(runs))


def test_best_scratch_counts_with_the_size_that_ended_best_at_each_budget(runs: Path) -> None:
    ladder(runs, 1.28)
    for steps, small, large in ((1400, 1.40, 1.50), (2800, 1.27, 1.35), (5600, 1.26, 1.20)):
        from_scratch(runs, "800k", 800_000, steps, small)
        from_scratch(runs, "2m", 2_400_000, round(steps / 3), large)
    found = find_runs(runs, ["quick"])
    [comparison] = compare(found[0], found)
    assert comparison.num_parameters is None
    assert [name.removeprefix("quick-control-best-scratch-") for name in comparison.control_runs] == [
        *("800k-1400", "2m-467", "2m-933", "800k-2800", "800k-5600", "2m-1867")
    ]
    assert comparison.equal_flops is not None
    assert comparison.equal_flops.loss_difference == pytest.approx(0.01)
    assert "growing lost 0.010 nats against quick-control-best-scratch-800k-2800" in said(comparison)
    assert verdicts(found)[0][0] == "quick against the best size from scratch"


def test_best_scratch_counts_the_last_sizes_own_control_and_misses_what_did_not_finish(runs: Path) -> None:
    ladder(runs, 1.28)
    control(runs, 933, 1.31)
    from_scratch(runs, "800k", 800_000, 2800, 1.36)
    from_scratch(runs, "800k", 800_000, 5600, 1.30)
    found = find_runs(runs, ["quick"])
    best = next(comparison for comparison in compare(found[0], found) if comparison.control == "best-scratch")
    assert best.control_runs == (
        *("quick-control-tokenformer-scratch-933", "quick-control-best-scratch-800k-2800"),
        "quick-control-best-scratch-800k-5600",
    )
    assert "Caution: some sizes have fewer budgets that count than others: 2.4M at 1 of 2." in said(best)


def test_the_best_size_from_scratch_is_not_claimed_before_every_size_is_finished(runs: Path) -> None:
    ladder(runs, 1.28)
    from_scratch(runs, "800k", 800_000, 1400, 1.40)
    from_scratch(runs, "800k", 800_000, 5600, 1.26)
    from_scratch(runs, "2m", 2_400_000, 933, None)
    found = find_runs(runs, ["quick"])
    [comparison] = compare(found[0], found)
    assert comparison.saving is comparison.flops_to_equal_loss is None
    assert verdict(comparison)[0] == (
        "Incomplete: the best size from scratch is not known, because no control of 2.4M parameters counts yet."
    )
    assert "quick-control-best-scratch-2m-933 does not count: it is not finished." in said(comparison)
    assert "won" not in said(comparison)
    assert report_document(found).runs[0].comparisons[0].equal_flops is None


SIZES = {"800k": 800_000, "1m": 1_200_000, "2m": 2_400_000}
LADDER_WORK = 1000 * 800_000 + 600 * 2_400_000
"""The cost of the invented ladder, in steps times parameters."""


@pytest.mark.parametrize("killed", [False, True])
def test_a_control_that_replayed_some_of_its_work_changes_no_verdict(runs: Path, killed: bool) -> None:
    stages = [stage_of(name, size, steps) for (name, size), steps in zip(SIZES.items(), (400, 400, 600), strict=True)]
    FakeRun(runs, "quick", stages).train(0, 1.42).train(1, 1.35).train(2, 1.28, start=1.35)
    for size, loss in (("800k", 1.18), ("1m", 1.30), ("2m", 1.35)):
        steps = round(LADDER_WORK / SIZES[size])
        killed_at = round(0.03 * steps) if killed and size == "800k" else 0
        from_scratch(runs, size, SIZES[size], steps, loss, killed_at=killed_at)
    from_scratch(runs, "800k", SIZES["800k"], LADDER_WORK // 1_600_000, 1.33)
    comparison = only_comparison(runs)
    assert "At equal loss growing lost" in said(comparison)
    assert "growing spent 1.59x as many" in said(comparison)
    assert "growing lost 0.100 nats against quick-control-best-scratch-800k" in said(comparison)
    replayed = "Not counted: FLOPs replayed after interruptions, quick-control-best-scratch-800k-2800 +3.0%."
    assert (replayed in said(comparison)) is killed


def test_replays_of_the_ladder_leave_it_comparable_at_equal_flops(runs: Path) -> None:
    ladder(runs, 1.28, killed_at=400)
    control(runs, 933, 1.30)
    comparison = only_comparison(runs)
    assert comparison.equal_flops is not None
    assert comparison.equal_flops.flops_ratio == pytest.approx(1.0, abs=1e-3)
    assert "Not counted: FLOPs replayed after interruptions, quick +42.9%." in said(comparison)


def test_a_cheaper_control_that_ended_lower_counts_at_equal_flops(runs: Path) -> None:
    ladder(runs, 1.28)
    from_scratch(runs, "800k", 800_000, 1400, 1.25)
    from_scratch(runs, "2m", 2_400_000, 933, 1.33)
    assert "growing lost 0.030 nats against quick-control-best-scratch-800k-1400" in said(only_comparison(runs))


def test_a_size_above_the_envelope_of_the_others_changes_nothing(runs: Path) -> None:
    ladder(runs, 1.28)
    from_scratch(runs, "800k", 800_000, 700, 1.40)
    from_scratch(runs, "2m", 2_400_000, 933, 1.22)
    alone = only_comparison(runs)
    assert alone.saving == pytest.approx(0.25 ** (1 / 3), rel=1e-3)
    from_scratch(runs, "800k", 800_000, 1400, 1.39)
    assert only_comparison(runs).saving == alone.saving


def invented(name: str, stages: list[tuple[int, int]], loss: float, kind: str | None, replayed: float) -> RunReport:
    """A finished run in memory: stages of (parameters, steps), a share of its FLOPs `replayed`."""
    made: list[StageReport] = []
    for index, (num_parameters, num_steps) in enumerate(stages):
        flops = 5.5e3 * num_parameters * num_steps
        so_far = (made[-1].cumulative_flops if made else 0.0) + flops
        spent = (num_steps * 1000, flops, so_far, replayed * flops, 1.0, 1.0, 0.0)
        quality = (loss, math.exp(loss), loss, None, None, True)
        made.append(StageReport(f"s{index}", num_parameters, num_steps, *spent, *quality))
    of = "quick" if kind else None
    return RunReport(name, name, name, "s", kind, of, None, tuple(made), (), "f00d", Path("runs") / name)


@pytest.mark.parametrize(
    ("flops", "seconds", "sentence"),
    [
        (0.0, 0.0, None),
        (0.0, 0.4, None),
        (0.0, 30.0, "Replayed after interruptions: 30s of device time, counted above."),
        (5.5e7, 0.4, "Replayed after interruptions: 5.50e07 FLOPs (+10.0%), not counted above."),
        (
            *(5.5e7, 30.0),
            "Replayed after interruptions: 5.50e07 FLOPs (+10.0%), not counted above, and 30s of device time, counted "
            "above.",
        ),
    ],
)
def test_the_report_names_replayed_work_only_where_there_was_any(
    flops: float, seconds: float, sentence: str | None
) -> None:
    run = invented("quick", [(1000, 100)], 1.28, None, 0.0)
    [stage] = run.stages
    run = replace(run, stages=(replace(stage, replayed_flops=flops, replayed_device_seconds=seconds),))
    assert remarks(run) == ([sentence] if sentence else [])


def test_the_report_names_recomputed_work_apart_from_every_other_figure() -> None:
    run = invented("quick", [(1000, 100)], 1.28, None, 0.0)
    assert remarks(run) == []
    checkpointed = replace(run, stages=(replace(run.stages[0], recomputed_flops=1.65e8),))
    assert checkpointed.total_flops == run.total_flops == 5.5e8
    assert remarks(checkpointed)[0] == (
        "Activation checkpointing recomputed 1.65e08 FLOPs (+30%) to save memory, not counted above; their device time "
        "is."
    )


CONTROLS = st.lists(
    st.tuples(
        st.sampled_from(sorted(SIZES.values())),
        st.sampled_from([0.25, 0.5, 1.0, 2.0]),
        st.floats(1.0, 1.6),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda control: control[:2],
)


def against(controls: list[tuple[int, int, float, float]], ladder_replays: float = 0.0) -> Comparison:
    """The invented ladder against best-scratch controls of (parameters, steps, loss, share of replays).

    A size without any gets a hopeless one, so that every size has been tried.
    """
    stages = [(800_000, 400), (1_200_000, 400), (2_400_000, 600)]
    runs = [invented("quick", stages, 1.28, None, ladder_replays)]
    tried = {size for size, *_ in controls}
    hopeless = [(size, 10**6, 9.0, 0.0) for size, _ in stages if size not in tried]
    for size, steps, loss, replayed in [*controls, *hopeless]:
        runs.append(invented(f"{size}-{steps}", [(size, steps)], loss, "best-scratch", replayed))
    [comparison] = compare(runs[0], runs)
    return comparison


def in_steps(controls: list[tuple[int, float, float]]) -> list[tuple[int, int, float, float]]:
    return [(size, round(budget * LADDER_WORK / size), loss, 0.0) for size, budget, loss in controls]


def claims(comparison: Comparison) -> tuple[float, float]:
    """The claims for growing: the largest saving, and the nats won at equal FLOPs."""
    equal_loss, equal_flops = comparison.equal_loss, comparison.equal_flops
    saving = equal_loss.flops / comparison.ladder.cumulative_flops if equal_loss else math.inf
    return saving, math.inf if equal_flops is None else -equal_flops.loss_difference


def outcome(comparison: Comparison) -> str:
    """`won`, `lost` or `level`; empty if nothing is claimed."""
    head = verdict(comparison)[0].partition(":")[0]
    return next((word for word in ("won", "lost", "level") if word in head), "")


@given(controls=CONTROLS, replays=st.lists(st.floats(0.0, 3.0), min_size=10, max_size=10), data=st.data())
def test_replays_and_order_never_change_the_verdict(
    controls: list[tuple[int, float, float]], replays: list[float], data: st.DataObject
) -> None:
    plain = in_steps(controls)
    replayed = [(*control[:3], share) for control, share in zip(plain, replays, strict=False)]
    before, after = against(plain), against(data.draw(st.permutations(replayed)), replays[-1])
    assert verdict(before)[:2] == verdict(after)[:2]
    assert (before.saving, before.equal_flops) == (after.saving, after.equal_flops)


@given(controls=CONTROLS, data=st.data())
def test_a_dominated_control_never_improves_what_is_claimed(
    controls: list[tuple[int, float, float]], data: st.DataObject
) -> None:
    plain = in_steps(controls)
    size, steps, loss, _ = data.draw(st.sampled_from(plain))
    longer, worse = data.draw(st.integers(0, 4 * steps)), data.draw(st.floats(0.0, 0.5))
    other = data.draw(st.sampled_from(sorted(SIZES.values())))
    dominated = (other, math.ceil((steps + longer) * size / other), loss + worse, 0.0)
    before, after = against(plain), against([*plain, dominated])
    assert after.saving == before.saving
    assert verdict(after)[0].partition(":")[0] == verdict(before)[0].partition(":")[0]
    assert claims(after)[1] <= claims(before)[1]


@given(controls=CONTROLS, another=CONTROLS)
def test_further_controls_never_raise_the_saving(
    controls: list[tuple[int, float, float]], another: list[tuple[int, float, float]]
) -> None:
    few, many = in_steps(controls), in_steps([*controls, *another])
    assert claims(against(many))[0] <= claims(against(few))[0] * (1 + 1e-12)


@given(controls=CONTROLS, rounding=st.lists(st.integers(-1, 1), min_size=9, max_size=9))
def test_rounding_to_whole_steps_moves_the_saving_by_no_more_than_the_rounding(
    controls: list[tuple[int, float, float]], rounding: list[int]
) -> None:
    plain = in_steps(controls)
    rounded = [(a, steps + r, b, c) for (a, steps, b, c), r in zip(plain, rounding, strict=False)]
    before, after = against(plain), against(rounded)  # a step is at most 0.43 % of the smallest budget
    if before.saving is not None and after.saving is not None:
        assert after.saving == pytest.approx(before.saving, rel=0.005)
    assert {outcome(before), outcome(after)} != {"won", "lost"}
    if "(not bracketed)" in verdict(before)[0]:
        assert outcome(after) == outcome(before)
    assert claims(after)[1] == claims(before)[1]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"seed": 2}, "it differs from the ladder in seed (2, the ladder 1)"),
        ({"training.sequence_length": 128}, "in training.sequence_length (128, the ladder 64)"),
        ({"evaluation.max_sequences": 9}, "in evaluation.max_sequences (9, the ladder None)"),
        ({"precision": "fp32"}, "in precision (fp32, the ladder bf16)"),
        ({"data": "other"}, "it was trained on other data"),
    ],
)
def test_a_control_trained_under_other_conditions_does_not_count_and_they_are_named(
    runs: Path, how: dict[str, Any], words: str
) -> None:
    ladder(runs)
    control(runs, 933, 1.20, **how)
    comparison = only_comparison(runs)
    assert (comparison.saving, comparison.equal_flops) == (None, None)
    assert f"quick-control-{SCRATCH}-933 does not count" in said(comparison)
    assert words in said(comparison)


def test_copies_of_runs_are_named_and_left_out(runs: Path) -> None:
    ladder(runs)
    control(runs, 700, 1.30)
    control(runs, 1400, 1.26)
    name = f"quick-control-{SCRATCH}-1400"
    expected = [verdict(comparison) for comparison in compare(find_runs(runs)[0], find_runs(runs))]
    shutil.copytree(runs / "quick", runs / "quick.bak")
    shutil.copytree(runs / name, runs / f"{name}-again")
    found = find_runs(runs)
    assert [run.name for run in found] == ["quick", f"quick-control-{SCRATCH}-700", name]
    assert [verdict(comparison) for comparison in compare(found[0], found)] == expected
    assert found[0].notes == ("quick.bak is a copy of quick and is left out.",)
    assert found[2].notes == (f"{name}-again is a copy of {name} and is left out.",)
    assert [run.name for run in find_runs(runs, ["quick", "quick.bak"])] == [run.name for run in found]


def test_a_copy_that_was_trained_further_is_shown_beside_its_original(runs: Path) -> None:
    begun = ladder(runs, final=None)
    shutil.copytree(runs / "quick", runs / "zz")
    shutil.copytree(runs / "quick", runs / "same")
    begun.path = runs / "zz" / "ledger.db"
    begun.train(1, 1.28, start=1.42)
    found = find_runs(runs)
    assert [(run.name, run.finished) for run in found] == [("quick", False), ("zz", True)]
    assert found[0].notes == ("same is a copy of quick and is left out.",)
    [note] = found[1].notes
    assert note.startswith("zz began as a copy of quick, ")
    assert "do not add their costs" in note


def test_the_note_of_a_requested_copy_names_it_as_the_copy(runs: Path) -> None:
    ladder(runs)
    shutil.copytree(runs / "quick", runs / "zz")
    [found] = find_runs(runs, ["zz"])
    assert found.notes == ("zz is a copy of quick; only zz is shown, as you asked.",)


def test_a_requested_copy_and_a_renamed_run_are_named_by_their_directories(runs: Path) -> None:
    ladder(runs)
    control(runs, 933, 1.30)
    shutil.copytree(runs / "quick", runs / "quick.bak")
    found = find_runs(runs, ["quick.bak"])
    assert [run.name for run in found] == ["quick.bak", f"quick-control-{SCRATCH}-933"]
    assert verdicts(found)[0][0].startswith("quick.bak against")
    shutil.rmtree(runs / "quick.bak")
    (runs / "quick").rename(runs / "renamed")
    found = find_runs(runs)
    assert [(run.name, run.control_of) for run in found] == [
        *(("renamed", None), (f"quick-control-{SCRATCH}-933", "renamed"))
    ]


def test_the_verdict_has_the_caveats_of_controls_and_of_a_ladder_that_never_decays(runs: Path) -> None:
    FakeRun(runs, "quick", [SMALL, LARGE], decays=False).train(0, 1.42).train(1, 1.28, start=1.42)
    control(runs, 933, 1.30, caveats=("has 1.3 times the parameters",))
    assert f"Caution: quick-control-{SCRATCH}-933 has 1.3 times the parameters." in said(only_comparison(runs))
    assert "Caution: the learning rate of quick never decays" in said(only_comparison(runs))


def test_equal_costs_and_losses_are_even_and_one_step_more_claims_nothing(runs: Path) -> None:
    ladder(runs, 1.28)
    control(runs, 933, 1.28)
    assert "At equal loss growing came out even" in said(only_comparison(runs))
    for steps in (932, 933, 934, 940):
        head = verdict(against([(2_400_000, steps, 1.2801, 0.0)]))[0]
        assert head.startswith("At equal loss (not bracketed): no control reached")


def test_a_control_that_never_decays_counts_only_if_it_beats_the_ladder(runs: Path) -> None:
    ladder(runs, 1.28)
    control(runs, 467, 1.20, decays=False)
    control(runs, 1866, 1.31)
    comparison = only_comparison(runs)
    assert outcome(comparison) == "lost"
    assert "does not count" not in said(comparison)
    control(runs, 900, 1.29, decays=False)
    assert f"quick-control-{SCRATCH}-900 does not count: its learning rate never decays." in said(only_comparison(runs))


def test_controls_of_sizes_that_the_ladder_does_not_have_do_not_count(runs: Path) -> None:
    FakeRun(runs, "quick", [SMALL, stage_of("1-1m", 1_200_000, 600)]).train(0, 1.42).train(1, 1.28, start=1.42)
    for kind in (SCRATCH, "best-scratch"):
        control(runs, 933, 1.33, kind=kind)
    control(runs, 933, 1.33, kind="single-jump")
    found = find_runs(runs)
    for comparison in compare(found[0], found):
        assert comparison.points == ()
        assert ("has 2.4M parameters" in said(comparison)) is True


@pytest.mark.parametrize(
    ("kind", "path", "counts"),
    [
        (SCRATCH, "model.num_heads", False),
        (SCRATCH, "model.rotary_fraction", False),
        ("transformer-scratch", "model.num_heads", True),
        ("transformer-scratch", "model.rotary_fraction", False),
        (SCRATCH, "growth.ramp", True),
        ("single-jump", "growth.ramp", False),
        ("single-jump", "growth.when", True),
        ("official-growth", "growth.init", True),
        ("official-growth", "growth.rewarmup.steps", False),
    ],
)
def test_a_control_may_differ_in_what_its_kind_changes_and_in_nothing_else(
    runs: Path, kind: str, path: str, counts: bool
) -> None:
    ladder(runs)
    family = {"model.family": "transformer"} if kind.startswith("transformer") else {}
    control(runs, 933, 1.30, kind=kind, **family, **{path: "other"})
    comparison = only_comparison(runs)
    assert bool(comparison.points) is counts
    assert (f"differs from the ladder in {path} (other, the ladder None)" in said(comparison)) is not counts


def test_several_runs_of_one_budget_are_one_budget(runs: Path) -> None:
    ladder(runs)
    for steps, loss in ((932, 1.31), (933, 1.32), (934, 1.33)):
        control(runs, steps, loss)
    comparison = only_comparison(runs)
    assert "Caution: only 1 control budget" in said(comparison)
    assert "ended worse" not in said(comparison)


def test_controls_stay_with_the_ladder_that_has_the_name_they_were_started_for(runs: Path) -> None:
    ladder(runs)
    old = find_runs(runs)[0].run_id
    FakeRun(runs, f"quick-control-{SCRATCH}-933", [stage_of("0-2m", 2_400_000, 933)], SCRATCH, ladder_id=old)
    (runs / "quick").rename(runs / "quick-old")
    assert [run.control_of for run in find_runs(runs)] == [None, "quick-old"]
    ladder(runs)
    assert [run.name for run in find_runs(runs, ["quick"])] == ["quick", f"quick-control-{SCRATCH}-933"]


def test_a_broken_control_of_a_renamed_ladder_is_an_error(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.30).path.write_bytes(b"torn" * 500)
    (runs / "quick").rename(runs / "renamed")
    with pytest.raises(LedgerError, match=f"{SCRATCH}-500"):
        find_runs(runs, ["renamed"])
