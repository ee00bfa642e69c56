"""The family of a ladder: finished models of several sizes, each against its own size from scratch, and their price."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from growctl.analysis.find import find_runs
from growctl.analysis.runs import RunReport
from growctl.documents.output import plain
from growctl.ledger.ledger import StageEntry
from growctl.report.documents import report_document, stages_csv
from growctl.report.results import verdicts
from growctl.report.sections import stage_section
from growctl.text.terminal import print_sections
from growctl.verdicts.compare import compare
from growctl.verdicts.family import Family, compare_family, price
from growctl.verdicts.verdict import verdict
from tests.growctl.documents.schemas import assert_follows_schema
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder, stage_of
from tests.growctl.report.parsed import ParsedPage
from tests.growctl.report.rendered import page_of

RELEASE = replace(SMALL, name="0-800k/release", num_steps=100, branch_of=SMALL.name, decayed=True)
LAST = replace(LARGE, decayed=True)
SMALL_STEP, LARGE_STEP = (stage.step_flops.total for stage in (SMALL, LARGE))
TRUNK = 1000 * SMALL_STEP + 600 * LARGE_STEP
RELEASED = 1100 * SMALL_STEP
"""FLOPs of the small size's finished model."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A runs directory with a ladder whose first size is released."""
    released_ladder(tmp_path)
    return tmp_path


def released_ladder(runs: Path, release: float | None = 1.36, last: float | None = 1.28) -> None:
    run = FakeRun(runs, "quick", [SMALL, RELEASE, LAST]).train(0, 1.42).train(1, release, start=1.42)
    if last:
        run.train(2, last, start=1.42)


def scratch(runs: Path, size: StageEntry, steps: int, final: float) -> None:
    """A control of that size from scratch."""
    stage = stage_of(f"s{size.num_parameters}", size.num_parameters, steps)
    name = f"quick-control-scratch-of-each-size-{stage.name}-{steps}"
    FakeRun(runs, name, [stage], "scratch-of-each-size").train(0, final)


def report(runs: Path) -> tuple[RunReport, list[RunReport]]:
    found = find_runs(runs, ["quick"])
    return found[0], found


def family_of(runs: Path) -> Family:
    family = compare_family(*report(runs))
    assert family
    return family


def test_a_release_counts_the_stages_up_to_its_own_and_no_later_stage_counts_the_release(runs: Path) -> None:
    quick, _ = report(runs)
    [release] = quick.releases
    assert release.cumulative_flops == pytest.approx(RELEASED)
    assert [stage.name for stage in quick.stages] == ["0-800k", "1-2m"]
    assert quick.cumulative_flops == pytest.approx(TRUNK)
    assert quick.total_flops == pytest.approx(TRUNK + 100 * SMALL_STEP)
    assert quick.stages[1].loss_before_growth == 1.42
    assert quick.final_loss == 1.28
    assert {point.stage for point in quick.points} == {"0-800k", "1-2m"}


@pytest.mark.parametrize(
    ("width", "dropped"), [(80, ()), (64, ("FLOPs",)), (52, ("FLOPs", "device time", "parameters"))]
)
def test_a_narrow_table_of_a_run_with_a_release_drops_columns_and_cuts_nothing(
    runs: Path, width: int, dropped: tuple[str, ...]
) -> None:
    out = io.StringIO()
    print_sections([stage_section(find_runs(runs))], Console(file=out, width=width))
    assert max(map(len, out.getvalue().splitlines())) <= width
    words = out.getvalue().split()
    assert ("device" in words) == ("device time" not in dropped)
    assert "0-800k/release" in words or words[words.index("0-800k/") :].count("release")


def test_a_release_is_below_its_stage_in_tables_json_csv_and_on_the_page(runs: Path) -> None:
    _, found = report(runs)
    names = ["0-800k", "0-800k/release", "1-2m"]
    [document] = plain(report_document(found))["runs"]
    assert [stage["name"] for stage in document["stages"]] == [names[0], names[2]]
    assert [(stage["name"], stage["branch_of"]) for stage in document["releases"]] == [(names[1], names[0])]
    assert [line.split(",")[3] for line in stages_csv(found).splitlines()[1:]] == names
    output = io.StringIO()
    print_sections([stage_section(found)], Console(file=output, width=100))
    shown = [line.split()[0] for line in output.getvalue().splitlines() if line.startswith("  ") and "800k" in line]
    assert shown[:2] == names[:2]
    assert "Releases are branches of 4.40e11 FLOPs in all" in output.getvalue()
    rows = [cell.text for cell in ParsedPage(page_of(found)).all("th", scope="row")]
    assert names in [rows[first : first + 3] for first in range(len(rows))]


def test_each_finished_model_is_compared_with_its_own_size_at_its_own_cost(runs: Path) -> None:
    scratch(runs, SMALL, 1100, 1.40)
    scratch(runs, LARGE, round(TRUNK / LARGE_STEP), 1.33)
    small, large = family_of(runs).models
    assert [point.num_parameters for point in (*small.points, *large.points)] == [800_000, 2_400_000]
    assert small.equal_flops
    assert small.equal_flops.loss_difference == pytest.approx(1.36 - 1.40)
    said = " ".join(verdict(small))
    assert "At equal FLOPs growing won 0.040 nats against quick-control-scratch-of-each-size-s800000-1100" in said
    assert "no control reached the model's loss" in said
    headings = [heading for heading, _ in verdicts(report(runs)[1])]
    assert headings == [
        "0-800k of quick against its size from scratch",
        "1-2m of quick against its size from scratch",
        "quick: the price of 2 finished models",
    ]


def test_the_price_of_a_family_counts_shared_stages_once_and_sums_what_scratch_needs_for_each_loss(runs: Path) -> None:
    scratch(runs, SMALL, 1000, 1.42)
    scratch(runs, SMALL, 4000, 1.30)
    scratch(runs, LARGE, 600, 1.34)
    scratch(runs, LARGE, 2400, 1.22)
    family = family_of(runs)
    # Half of the way in loss between two budgets is half of the way in log FLOPs: twice the smaller budget.
    assert family.flops == pytest.approx(TRUNK + 100 * SMALL_STEP)
    assert family.flops_from_scratch == pytest.approx(2000 * SMALL_STEP + 1200 * LARGE_STEP)
    assert family.saving == pytest.approx((2000 * SMALL_STEP + 1200 * LARGE_STEP) / (TRUNK + 100 * SMALL_STEP))
    [said] = price(family)
    assert said.startswith("Growing won. By growing, 2 finished models cost 1.28e13 FLOPs, 4.40e11 of them in releases")
    assert "from scratch, their losses need 2.46e13 FLOPs, 1.93x as many" in said
    document = plain(report_document(report(runs)[1]))
    [ladder] = [found for found in document["runs"] if found["control"] is None]
    assert ladder["family"]["saving"] == family.saving
    assert_follows_schema(document, "report")


def test_a_price_that_is_not_bracketed_names_the_sizes_and_their_sides(runs: Path) -> None:
    scratch(runs, SMALL, 500, 1.30)
    scratch(runs, LARGE, 2000, 1.50)
    family = family_of(runs)
    assert family.flops_from_scratch is None
    grown, unknown = price(family)
    assert grown.startswith("By growing, 2 finished models cost")
    assert "0-800k/release (800k parameters) needs less than 2.20e12 FLOPs: its cheapest control ended below" in unknown
    assert "1-2m (2.4M parameters) needs more than its controls had, 2.64e13 FLOPs: none reached its loss" in unknown


def test_without_controls_or_before_the_end_there_is_no_price(tmp_path: Path) -> None:
    released_ladder(tmp_path, last=None)
    assert price(family_of(tmp_path)) == ("Nothing to compare yet: 1-2m has no final loss.",)
    released_ladder(tmp_path / "more")
    assert "has no control that counts" in price(family_of(tmp_path / "more"))[1]


def test_the_last_sizes_other_controls_from_scratch_count_for_it_too(runs: Path) -> None:
    control(runs, 1500, 1.31)
    _, large = family_of(runs).models
    assert [point.run for point in large.points] == ["quick-control-tokenformer-scratch-1500"]
    [comparison] = compare(*report(runs))
    assert comparison.control == "tokenformer-scratch"
    assert "the ladder's loss" in " ".join(verdict(comparison))


def test_a_ladder_without_releases_and_without_controls_of_each_size_is_no_family(tmp_path: Path) -> None:
    ladder(tmp_path)
    assert compare_family(*report(tmp_path)) is None
    assert report_document(find_runs(tmp_path)).runs[0].family is None
