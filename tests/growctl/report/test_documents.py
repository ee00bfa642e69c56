"""A report's files go where they belong, each whole, and say what is wrong where they cannot be written."""

from unittest.mock import Mock

import pytest

from growctl.report.chart import Axis, Chart, Mark, Series
from growctl.report.documents import report_folder, write_report
from growctl.runs.find import find_runs
from growctl.runs_dir import ReportPaths, RunsPaths
from growctl.text.section import Section
from tests.growctl.invented_runs import SCRATCH, SMALL, FakeRun, control, ladder
from tests.growctl.runs import run_here

SERIES = Series("a", (Mark(1e12, 30.0, is_end=True),), "ladder", "a", "a")
CHART = Chart("compute-against-perplexity", "Compute", "", Axis("FLOPs", is_log=True), Axis("perplexity"), (SERIES,))


def folder(runs, *names):
    """Where the report on the runs called `names`, or on all, goes: relative to the runs directory."""
    return str(report_folder(find_runs(runs, names), runs, are_all=not names).directory.relative_to(runs))


def test_the_report_on_one_ladder_is_in_its_run_and_that_on_several_in_a_folder_that_is_no_run(tmp_path):
    names = ["one", f"{'x' * 60}-1", f"{'x' * 60}-2"]
    for name in names:
        ladder(tmp_path, name=name)
    control(tmp_path, 600, 1.3, of="one")
    lone = f"one-control-{SCRATCH}-600"
    assert (folder(tmp_path, "one"), folder(tmp_path, lone)) == ("one/report", f"{lone}/report")
    assert (folder(tmp_path), folder(tmp_path, *names[:2])) == (".reports/all", f".reports/one+{names[1]}")
    found = {folder(tmp_path, *names), folder(tmp_path, *names[1:])}
    assert [len(each) for each in found] == [len(".reports/") + 100] * 2, "every file system takes such a name"
    write_report(find_runs(tmp_path), [], RunsPaths(tmp_path).report("all"))
    assert len(RunsPaths(tmp_path).all_runs()) == len(find_runs(tmp_path)) == 4


@pytest.mark.parametrize(("group", "name"), [("quick", "quick"), ("../../etc", "_.._etc")])
def test_the_report_on_a_set_is_named_for_it_inside_the_folder_of_reports_and_stays_when_a_seed_joins(
    tmp_path, group, name
):
    for seed in (0, 1, 2):
        FakeRun(tmp_path, f"q{seed}", [SMALL], run_set=(group, {"seed": seed})).train(0, 1.4)
        assert folder(tmp_path) == (f".reports/{name}" if seed else "q0/report")


def test_a_report_that_fails_while_its_files_are_made_leaves_the_former_ones(tmp_path, monkeypatch):
    def files():
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.*")}

    write_report([], [Section("compute", "Compute", (CHART,))], ReportPaths(tmp_path), "pdf")
    before, charts = files(), {f"{CHART.key}.png", f"figures/{CHART.key}.pdf"}
    assert before.keys() == {"report.html", "stages.csv"} | charts
    monkeypatch.setattr("growctl.report.page.render_page", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_report([], [], ReportPaths(tmp_path))
    assert files() == before


def test_a_runs_directory_that_cannot_be_written_still_gets_its_table_and_one_word_on_why(tmp_path):
    ladder(tmp_path)
    (tmp_path / "quick/report").write_text("a file, so that no folder can be made, not even by root")
    out, err = run_here("report", "quick", "--runs-dir", tmp_path)
    assert ("1-2m" in out, "Charts and tables" in out) == (True, False)
    assert err.strip().startswith(f"No page was written: File exists: {tmp_path}/quick/report. --output")


def test_output_takes_the_files_and_an_error_there_is_the_users(tmp_path):
    runs = tmp_path / "runs"
    ladder(runs)
    asked = ["report", "quick", "--runs-dir", runs, "--output"]
    out, _ = run_here(*asked, tmp_path / "paper", "--figures", "svg")
    assert f"Charts and tables: {tmp_path}/paper/report.html" in out
    assert (tmp_path / "paper/figures/compute-against-perplexity.svg").is_file()
    assert not (runs / "quick/report").exists()
    run_here(*asked, tmp_path / "for scripts", "--json")
    assert (tmp_path / "for scripts/report.html").is_file()
    (tmp_path / "file").touch()
    assert run_here(*asked, tmp_path / "file", expect=2)[1] == f"growctl: {tmp_path}/file: File exists\n"
