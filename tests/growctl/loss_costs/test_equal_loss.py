"""What each loss costs, in every currency: against curves with known answers, and against invented runs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from growctl.analysis.find import find_runs
from growctl.analysis.runs import RunReport
from growctl.ledger.entries import Cost
from growctl.ledger.ledger import BaseEntry
from growctl.loss_costs import cost_by_stage
from growctl.loss_costs import sections as equal_loss_sections
from growctl.loss_costs.equal_loss import (
    Board,
    Curve,
    FinishedModel,
    boards,
    cost_of_loss,
    family_from_scratch,
    ladder_boards,
)
from growctl.report.documents import report_document
from growctl.text.section import Paragraph, Table
from growctl.verdicts.costs import CPU_ENERGY, CURRENCIES, DEVICE_HOURS, FLOPS, MONEY
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, control, from_scratch, ladder, stage_of

COSTS = st.floats(1e-3, 1e24)
LOSSES = st.floats(0.5, 9.0)
CURVES = st.lists(st.tuples(COSTS, LOSSES), min_size=1, max_size=8)
ODD = (math.nan, math.inf, -math.inf)


def curve(points: list[tuple[float, float]]) -> Curve:
    """A curve of these costs and losses, the same costs in all currencies."""
    return Curve(
        "scratch",
        tuple(
            FinishedModel(f"run-{number}", "s", 1, loss, {currency.key: cost for currency in CURRENCIES})
            for number, (cost, loss) in enumerate(points)
        ),
    )


def cost(points: list[tuple[float, float]], loss: float) -> float | None:
    return cost_of_loss(curve(points), loss, FLOPS).cost


@given(
    st.floats(2.0, 9.0), st.floats(0.05, 0.5), st.lists(st.floats(1.0, 40.0), min_size=2, max_size=6), st.floats(0, 1)
)
def test_a_loss_that_falls_with_the_logarithm_of_the_cost_gives_the_exact_cost_back(top, slope, logs, share):
    low, high = min(logs), max(logs)
    assume(high - low > 0.1)
    wanted = math.exp(low + share * (high - low))
    found = cost([(math.exp(log), top - slope * log) for log in logs], top - slope * math.log(wanted))
    assert found is None or found == pytest.approx(wanted, rel=1e-6)
    assert found is not None or share in (0.0, 1.0) or min(share, 1 - share) < 1e-9


@given(CURVES, LOSSES, st.floats(1e-3, 1e3))
def test_a_currency_in_other_units_gives_the_same_answer_in_those_units(points, loss, factor):
    found, scaled = cost(points, loss), cost([(factor * spent, its) for spent, its in points], loss)
    assume(len({spent * factor for spent, _ in points}) == len({spent for spent, _ in points}))
    if found is None or scaled is None:
        assert found is scaled
    else:
        assert scaled == pytest.approx(factor * found, rel=1e-6)


@given(st.data(), CURVES, LOSSES)
def test_the_order_of_the_runs_does_not_matter(data, points, loss):
    assert cost(data.draw(st.permutations(points)), loss) == cost(points, loss)


@given(CURVES, LOSSES, LOSSES)
def test_a_lower_loss_never_costs_less(points, one, other):
    low, high = sorted((one, other))
    cheap, dear = cost(points, high), cost(points, low)
    if cheap is not None and dear is not None:
        assert cheap <= dear * (1 + 1e-9)


@given(CURVES, LOSSES)
def test_an_answer_lies_between_a_model_above_and_a_model_below_the_loss(points, loss):
    found = cost(points, loss)
    if found is None:
        return
    assert any(its >= loss and spent <= found * (1 + 1e-9) for spent, its in points)
    assert any(its <= loss and spent >= found * (1 - 1e-9) for spent, its in points)


@given(CURVES, LOSSES, st.lists(st.tuples(st.sampled_from((*ODD, 0.0, -1.0)), LOSSES)), st.sampled_from(ODD), COSTS)
def test_models_without_a_place_on_the_curve_change_nothing(points, loss, odd_costs, odd_loss, spent):
    assert cost([*points, *odd_costs, (spent, odd_loss)], loss) == cost(points, loss)
    assert cost(points, odd_loss) is None


@pytest.mark.parametrize(
    ("points", "loss", "answer"),
    [
        ([(100, 3.0), (400, 2.0)], 2.5, 200.0),
        ([(100, 3.0), (400, 2.0)], 3.0, 100.0),  # measured at one end, and at the other
        ([(100, 3.0), (400, 2.0)], 2.0, 400.0),
        ([(100, 3.0), (200, 3.5), (400, 2.0)], 2.5, 200.0),  # a larger budget with a higher loss
        ([(100, 3.0), (400, 2.0), (400, 2.0)], 2.5, 200.0),  # a tie
        ([(100, 3.0), (400, 2.5), (400, 2.0)], 2.5, 200.0),  # two losses at one cost
        ([(100, 2.0)], 2.0, 100.0),
        ([(100, 2.0)], 1.9, "scratch did not reach that loss: its best is 2.0000 (run-0)."),
        (
            [(100, 2.0)],
            2.1,
            "even the cheapest of scratch ended below that loss, at 2.0000 (run-0).",
        ),
        ([(0.0, 2.0), (0.0, 1.0)], 1.5, "scratch has no model that cost any FLOPs."),
        ([], 2.0, "scratch has no finished model yet."),
    ],
)
def test_a_cost_is_read_off_between_models_or_the_reason_is_given(points, loss, answer):
    found = cost_of_loss(curve(points), loss, FLOPS)
    if isinstance(answer, str):
        assert (found.cost, found.why) == (None, answer)
    else:
        assert found.cost == pytest.approx(answer)
        assert not found.why


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def board_of(runs: Path) -> Board:
    [board] = boards(find_runs(runs))
    return board


def text_of(runs: Path) -> str:
    section = equal_loss_sections.section(find_runs(runs))
    assert section
    texts = [getattr(part, "text", "") for part in section.parts]
    tables = [part for part in section.parts if isinstance(part, Table)]
    cells = [cell.text for table in tables for group in table.groups for row in group.rows for cell in row]
    return "\n".join([*texts, *cells, *(note for table in tables for group in table.groups for note in group.reasons)])


def with_costs(run: RunReport, **costs: float | None) -> RunReport:
    """`run` with these costs of every stage."""
    return replace(run, stages=tuple(replace(stage, model_cost=Cost(**costs)) for stage in run.stages))  # type: ignore[arg-type]


def test_a_saving_in_one_currency_and_a_loss_in_another_are_said_in_the_same_words(runs: Path) -> None:
    ladder(runs)
    for budget, loss in ((900, 1.40), (1800, 1.20)):
        control(runs, budget, loss)
    grown, *controls = find_runs(runs)
    found = [with_costs(grown, device_seconds=3600.0, money=None, gpu_joules=None, cpu_joules=7.2e6)]
    found += [
        with_costs(run, device_seconds=1800.0 * 4**n, money=2.0, gpu_joules=None, cpu_joules=3.6e6 * 16**n)
        for n, run in enumerate(controls)
    ]
    [board] = boards(found)
    [said] = equal_loss_sections.sentences(board)
    flops = 900 * 2**0.6 * 2_400_000 / (1000 * 800_000 + 600 * 2_400_000)
    assert f"FLOPs ({flops:.2f}x, growing saved {1 - 1 / flops:.0%})" in said
    assert "1h 8m of device time (0.57x, growing cost 74% more)" in said  # 0.5 h x 4^0.6, against 2 h
    assert "5.28 kWh of CPU energy (1.32x, growing saved 24%)" in said  # 1 kWh x 16^0.6, against 4 kWh
    assert "money" not in said  # unknown of the ladder
    section = equal_loss_sections.section(found)
    assert section
    assert Paragraph(equal_loss_sections.DEVICE_RULES, "note") in section.parts
    [_, of_controls] = board.curves
    [target] = [model for model in board.targets if model.run == "quick"]
    assert cost_of_loss(of_controls, target.loss, MONEY).word == "not bracketed"


def test_a_cost_unknown_of_any_part_is_unknown_and_the_cell_names_the_part(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.40)
    control(runs, 1400, 1.20)
    board = board_of(runs)
    [_, controls] = board.curves
    found = cost_of_loss(controls, 1.3, CPU_ENERGY)
    assert (found.cost, found.word) == (None, "unknown")
    assert found.why == f"The CPU energy of quick-control-{SCRATCH}-500 is not known: 0-2m."


def test_no_point_counts_before_its_learning_rate_has_decayed(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.40)
    control(runs, 1400, 1.20)
    control(runs, 9000, 1.10, decays=False)  # beats the ladder, so the verdict counts it
    [own, controls] = board_of(runs).curves
    assert [(model.stage, model.loss) for model in own.models] == [("1-2m", 1.28)]  # no end of the first stage
    assert [model.loss for model in controls.models] == [1.40, 1.20]


def test_a_release_counts_the_trunk_and_the_family_counts_what_its_models_share_once(runs: Path) -> None:
    release = replace(SMALL, name="0-800k/release", num_steps=100, branch_of=SMALL.name, decayed=True)
    last = replace(LARGE, decayed=True)
    FakeRun(runs, "quick", [SMALL, release, last]).train(0, 1.42).train(1, 1.36, start=1.42).train(2, 1.28, start=1.42)
    for size, steps, loss in ((SMALL, 900, 1.40), (SMALL, 2000, 1.34), (LARGE, 500, 1.32), (LARGE, 2000, 1.2)):
        stage = stage_of(f"s{size.num_parameters}", size.num_parameters, steps)
        name = f"quick-control-scratch-of-each-size-{stage.name}-{steps}"
        FakeRun(runs, name, [stage], "scratch-of-each-size").train(0, loss)
    found = find_runs(runs)
    small, large = SMALL.step_flops.total, LARGE.step_flops.total
    own, *controls = board_of(runs).curves
    assert [model.costs["flops"] for model in own.models] == [1100 * small, 1000 * small + 600 * large]
    assert [curve.name for curve in controls] == ["scratch-of-each-size 800k", "scratch-of-each-size 2.4M"]
    said = list(equal_loss_sections.sentences(board_of(runs)))
    assert [sentence.split(" nats")[0].split("the loss of ")[1] for sentence in said] == [
        "0-800k/release of quick, 1.3600",
        "quick, 1.2800",
    ]
    costs = [*cost_by_stage.costs(found[0]), *cost_by_stage.family_costs(found[0], found)]
    flops = {cost.what: (cost.so_far["flops"], cost.alone["flops"]) for cost in costs}
    assert flops["0-800k/release (branch)"] == (1100 * small, 100 * small)
    assert flops["1-2m"] == (1000 * small + 600 * large, 600 * large)
    assert flops["all 2 models"] == (1100 * small + 600 * large, None)
    need = 900 * (2000 / 900) ** (2 / 3) * small + 500 * 4 ** (1 / 3) * large
    assert flops["all from scratch"] == (pytest.approx(need), None)
    assert family_from_scratch(found[0], found, MONEY).why.startswith("The money of quick-control-scratch-of-each-size")


def test_a_start_checkpoint_counts_first_and_its_device_time_is_not_known(runs: Path) -> None:
    base = BaseEntry("old", "hash", "old-run", 800_000, 7e15)
    FakeRun(runs, "quick", [LARGE], base=base).train(0, 1.28)
    [run] = find_runs(runs)
    first, stage = cost_by_stage.costs(run)
    assert (first.what, first.so_far["flops"]) == ("start checkpoint", 7e15)
    assert stage.so_far["flops"] == 7e15 + 600 * LARGE.step_flops.total
    assert stage.alone["flops"] == 600 * LARGE.step_flops.total
    assert stage.so_far["device_hours"] is None
    assert DEVICE_HOURS.unknown_part(run) == "its start checkpoint"


def test_replayed_work_counts_in_no_currency(runs: Path) -> None:
    ladder(runs, killed_at=300)
    [killed] = find_runs(runs)
    replayed = sum(stage.replayed_device_seconds for stage in killed.stages)
    assert replayed > 0
    assert killed.replayed_flops > 0
    assert FLOPS.of_run(killed) == pytest.approx(1000 * SMALL.step_flops.total + 600 * LARGE.step_flops.total)
    hours = (sum(stage.device_seconds for stage in killed.stages) - replayed) / 3600
    assert DEVICE_HOURS.of_run(killed) == pytest.approx(hours)


def test_the_section_says_what_each_loss_costs_and_why_a_cell_has_no_answer(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.40)
    control(runs, 1400, 1.20)
    text = text_of(runs)
    assert f"{SCRATCH} 2.4M needs" in text
    assert "not reached" in text
    assert text.count("This ladder did not reach that loss: its best is 1.2800 (quick).") == 1


def test_a_cost_that_is_not_known_has_its_reason_below_the_table_and_no_sentence_beside_it(runs: Path) -> None:
    ladder(runs)
    control(runs, 1400, 1.40)
    text = text_of(runs)
    assert text.count("2.4M did not reach that loss") == 1
    assert "nats" not in text


def test_a_ladder_without_controls_has_no_such_section(runs: Path) -> None:
    ladder(runs)
    assert equal_loss_sections.section(find_runs(runs)) is None


def test_the_best_size_is_left_out_until_every_size_has_a_control_that_counts(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.40)
    from_scratch(runs, "2m", 2_400_000, 1400, 1.25)
    assert [curve.name for curve in board_of(runs).curves] == ["this ladder", f"{SCRATCH} 2.4M"]


def test_ladders_are_compared_with_each_other_on_the_same_data_and_seed_only(runs: Path) -> None:
    release = replace(SMALL, name="0-800k/release", num_steps=100, branch_of=SMALL.name, decayed=True)
    for name, data, seed, loss in (
        ("a", "one", 1, 1.2),
        ("b", "one", 1, 1.3),
        ("c", "two", 1, 1.3),
        ("d", "one", 2, 1),
    ):
        run = FakeRun(runs, name, [SMALL, release, replace(LARGE, decayed=True)], data=data, seed=seed)
        run.train(0, 1.42).train(1, 1.36, start=1.42).train(2, loss, start=1.42)
    [board] = ladder_boards(find_runs(runs))
    assert [curve.name for curve in board.curves] == ["a", "b"]
    [between] = [model for model in board.targets if model.loss == 1.3]
    first, last = (model.costs["flops"] for model in board.curves[0].models)
    found = cost_of_loss(board.curves[0], between.loss, FLOPS).cost
    assert found == pytest.approx(first * (last / first) ** (0.06 / 0.16))
    assert "ladders on the same data, seed 1" in str(equal_loss_sections.section(find_runs(runs)))


def test_the_json_report_has_every_cost_with_its_reason(runs: Path) -> None:
    ladder(runs)
    control(runs, 500, 1.40)
    control(runs, 1400, 1.20)
    document = report_document(find_runs(runs)).equal_loss
    [board] = document.boards
    assert [model.loss for model in board.models] == [1.40, 1.28, 1.20]
    assert len(board.costs) == 3 * 2 * 2  # losses x curves x FLOPs and device time
    [entry] = [
        entry
        for entry in board.costs
        if (entry.run, entry.curve, entry.currency) == ("quick", f"{SCRATCH} 2.4M", "flops")
    ]
    spent = 1000 * 800_000 + 600 * 2_400_000
    assert entry.ratio == pytest.approx(500 * (1400 / 500) ** 0.6 * 2_400_000 / spent)
    assert all(bool(entry.why) == (entry.cost is None) for entry in board.costs)
