"""A report's files go where they belong, each whole, and say what is wrong where they cannot be written."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.report.chart import Axis, Chart, Mark, Series
from growctl.report.documents import report_folder, write_report
from growctl.runs.find import find_runs
from growctl.runs_dir import ReportPaths, RunsPaths
from growctl.text.section import Cell, Column, Section, Table
from tests.growctl.invented_runs import SMALL, FakeRun, control, ladder

MARK = Mark(1e12, 30.0, is_end=True)
SERIES = Series("a", (MARK,), "ladder", "a", "a")
FLOPS, PERPLEXITY = Axis("FLOPs", is_log=True), Axis("perplexity")
COMPUTE = Chart("compute-against-perplexity", "Compute", "Compute.", FLOPS, PERPLEXITY, (SERIES,))
TABLE = Table.of("stages", [Column("stage", is_number=False)], [[Cell("a|b_c")]])
SECTIONS = [Section("compute", "Compute", (COMPUTE, TABLE)), Section("more", "More", (TABLE,))]


def folder(runs: Path, *names: str) -> Path:
    """Where the report on the runs called `names`, or on all, goes: relative to the runs directory."""
    return report_folder(find_runs(runs, names), runs, are_all=not names).directory.relative_to(runs)


def files(paths: ReportPaths) -> set[str]:
    return {str(path.relative_to(paths.directory)) for path in paths.directory.rglob("*") if path.is_file()}


def two_ladders(runs: Path) -> None:
    for name in ("one", "two"):
        ladder(runs, name=name)
    control(runs, 600, 1.3, of="one")


def test_the_report_on_one_ladder_with_its_controls_is_in_its_run(tmp_path: Path) -> None:
    two_ladders(tmp_path)
    assert folder(tmp_path, "one") == Path("one/report")
    assert folder(tmp_path, "one-control-tokenformer-scratch-600") == Path("one-control-tokenformer-scratch-600/report")


def test_the_report_on_several_ladders_has_a_folder_of_its_own_that_is_no_run(tmp_path: Path) -> None:
    two_ladders(tmp_path)
    assert folder(tmp_path) == Path(".reports/all")
    assert folder(tmp_path, "one", "two") == Path(".reports/one+two")
    before = [len(RunsPaths(tmp_path).all_runs()), len(find_runs(tmp_path))]
    write_report(find_runs(tmp_path), SECTIONS, RunsPaths(tmp_path).report("all"))
    assert [len(RunsPaths(tmp_path).all_runs()), len(find_runs(tmp_path))] == before


def test_the_report_on_all_seeds_of_a_set_is_named_for_the_set_and_stays_there_when_a_seed_joins(
    tmp_path: Path,
) -> None:
    for seed in (0, 1, 2):
        FakeRun(tmp_path, f"quick-seed-{seed}", [SMALL], run_set=("quick", {"seed": seed})).train(0, 1.4)
        assert folder(tmp_path) == Path(".reports/quick" if seed else "quick-seed-0/report")


def test_a_name_from_elsewhere_stays_inside_the_folder_of_reports(tmp_path: Path) -> None:
    for seed in (0, 1):
        FakeRun(tmp_path, f"q{seed}", [SMALL], run_set=("../../etc", {"seed": seed})).train(0, 1.4)
    name = folder(tmp_path)
    assert name.parent == Path(".reports")
    assert ".." not in name.parts


def test_many_long_names_make_a_folder_name_that_every_file_system_takes(tmp_path: Path) -> None:
    names = [f"{'x' * 60}-{number}" for number in range(5)]
    for name in names:
        FakeRun(tmp_path, name, [SMALL]).train(0, 1.4)
    found = {folder(tmp_path, *names), folder(tmp_path, *names[1:])}
    assert len(found) == 2
    assert all(len(each.name) <= 100 for each in found)


@pytest.mark.slow
def test_figures_and_tables_are_written_as_asked_for_and_each_has_its_own_file(tmp_path: Path) -> None:
    paths = ReportPaths(tmp_path / "out")
    write_report([], SECTIONS, paths, "pdf")
    expected = {"report.html", "stages.csv", "compute-against-perplexity.png"}
    assert files(paths) == expected | {"figures/compute-against-perplexity.pdf"}


def test_a_report_that_fails_while_it_is_made_leaves_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ReportPaths(tmp_path)
    write_report([], SECTIONS, paths)
    before = {name: (tmp_path / name).read_bytes() for name in files(paths)}

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("growctl.report.page.render_page", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report([], [], paths)
    assert {name: (tmp_path / name).read_bytes() for name in files(paths)} == before


def unwritable(runs: Path) -> None:
    """Makes the folder of the report on `quick` one that cannot be made, for root, too."""
    (runs / "quick" / "report").write_text("a file")


def test_a_runs_directory_that_cannot_be_written_still_gets_its_table_and_one_word_on_why(tmp_path: Path) -> None:
    ladder(tmp_path)
    unwritable(tmp_path)
    result = CliRunner().invoke(app, ["report", "quick", "--runs-dir", str(tmp_path)])
    assert result.exit_code == 0
    assert "1-2m" in result.stdout
    assert "Charts and tables" not in result.output
    [line] = result.stderr.strip().splitlines()
    assert line == (f"No page was written: File exists: {tmp_path}/quick/report. --output writes it elsewhere.")


def test_output_takes_the_files_and_an_error_there_is_the_users(tmp_path: Path) -> None:
    ladder(tmp_path / "runs")
    asked = ["report", "quick", "--runs-dir", str(tmp_path / "runs"), "--output"]
    result = CliRunner().invoke(app, [*asked, str(tmp_path / "paper"), "--figures", "svg"])
    assert result.exit_code == 0, result.output
    assert f"Charts and tables: {tmp_path}/paper/report.html" in result.stdout
    assert (tmp_path / "paper" / "figures" / "compute-against-perplexity.svg").is_file()
    assert not (tmp_path / "runs" / "quick" / "report").exists()
    (tmp_path / "file").write_text("")
    failed = CliRunner().invoke(app, [*asked, str(tmp_path / "file")])
    assert isinstance(failed.exception, OSError)  # main() turns it into exit code 2
    assert failed.exception.filename == str(tmp_path / "file")
    assert failed.exception.strerror == "File exists"


def test_json_and_output_print_one_document_and_write_the_files(tmp_path: Path) -> None:
    ladder(tmp_path)
    output = tmp_path / "out"
    result = CliRunner().invoke(app, ["report", "--json", "--runs-dir", str(tmp_path), "--output", str(output)])
    assert result.stdout.startswith("{")
    assert result.stdout.rstrip().endswith("}")
    assert (output / "report.html").is_file()
