"""A report's page escapes all text and refers to nothing outside itself, and its files go whole where they belong."""

import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import get_args
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.report.chart import Axis, Chart, Mark, Rule, Series
from growctl.report.documents import report_folder, write_report
from growctl.report.page import render_page
from growctl.runs.find import find_runs
from growctl.runs_dir import ReportPaths, RunsPaths
from growctl.text.section import Cell, Column, Listing, Paragraph, Rows, Section, Table, Tone
from tests.growctl.invented_runs import SCRATCH, SMALL, FakeRun, control, ladder
from tests.growctl.runs import run_here

WHY = "It is unfinished, so its loss is not known."
MARKS = (Mark(1e9, 3.0), Mark(2e11, 2.0, is_end=True))


@dataclass
class Element:
    """An element, with the text inside it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


class ParsedPage(HTMLParser):
    """The elements of a page, in order. Fails on tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in ("meta", "br", "hr", "img", "link", "input", "wbr"):
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag

    def handle_data(self, data):
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        return [each for each in self.elements if each.tag == tag and attributes.items() <= each.attributes.items()]


def chart(text: str = "a") -> Chart:
    series, rules = Series(text, MARKS, "ladder", text, text), (Rule(1.5e9, text),)
    return Chart("curve", text, text, Axis(text, is_log=True), Axis(text), (series,), rules)


def sections(text: str = "some text") -> list[Section]:
    """Every kind of part, with `text` wherever there is text."""
    unknown = Cell("-", why=WHY)
    groups = (
        Rows(((Cell(text), Cell("9", 9.0), unknown), (Cell(text), Cell("10", 10.0, text), Cell("2", 2.0)))),
        Rows(((Cell(text), Cell(text), unknown),), text, text, (text, WHY)),
    )
    table = Table("sizes", (Column(text, is_number=False), Column(text), Column("loss")), groups, caption=text)
    return [
        Section("headline", "Headline", (Paragraph(text, "strong"), Paragraph(text))),
        Section("first", text, tuple(Paragraph(text, tone) for tone in get_args(Tone))),
        Section("figures", text, (table, chart(text), Listing(text, text, is_command=True), Listing(text, text))),
        Section("method", "Method", (Paragraph(text),), is_detail=True),
    ]


@pytest.fixture(scope="module")
def page() -> ParsedPage:
    return ParsedPage(render_page("The title", sections()))


def test_the_page_has_no_script_and_refers_to_nothing_else(page):
    [policy] = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    directives = dict(part.strip().split(" ", 1) for part in policy.attributes["content"].split(";"))
    assert (directives["default-src"], "script-src" in directives) == ("'none'", False)
    assert not page.all("script")
    for element in page.elements:
        names = element.attributes.keys()
        assert not names & {"srcset", "action", "data", "poster", "ping"}, element
        assert not [name for name in names if name.startswith("on")], element
        assert element.attributes.get("href", "#").startswith("#"), element
        assert element.attributes.get("src", "data:").startswith("data:"), element
    text = render_page("t", sections())
    assert not re.search(r"https?://|@import|url\((?!#)|<link|<iframe|<object|<base", text)


HOSTILE = st.sampled_from(
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>", "--><i>", "{{ 7 * 7 }}", "'", "&lt;"]
)
UNDECODABLE = st.binary(max_size=4).map(lambda b: b.decode(errors="surrogateescape"))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.text(max_size=20) | HOSTILE | UNDECODABLE)
def test_no_text_adds_an_element_or_an_attribute(page, text):
    text = f"x{text}"  # an empty text leaves some attributes out
    rendered = render_page(text, sections(text))
    rendered.encode()
    found, usual = ParsedPage(rendered).elements, page.elements
    assert [(each.tag, *each.attributes) for each in found] == [(each.tag, *each.attributes) for each in usual]


def test_text_is_shown_as_what_it_is():
    """Control characters and markup, the first empty line of a listing, what stands between backticks."""
    title = "<script>\0\x1b[2J\u202e&amp;"
    parts = (Listing("l", "\n\tdef f():\n"), Paragraph("`run <b>` it"), Paragraph("one ` backtick"))
    page = ParsedPage(render_page(title, [Section("s", "S", parts)]))
    assert [heading.text for heading in page.all("h1")] == ["<script>\\x00\\x1b[2J\\u202e&amp;"]
    assert [code.text for code in page.all("code")] == ["\n\tdef f():\n", "run <b>"]
    assert [p.text for p in page.all("p", **{"class": "plain"})] == ["run <b> it", "one ` backtick"]


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
    write_report(find_runs(tmp_path), [], RunsPaths(tmp_path).report("all"))
    assert len(RunsPaths(tmp_path).all_runs()) == len(find_runs(tmp_path)) == 4


@pytest.mark.parametrize(("group", "name"), [("quick", "quick"), ("../../etc", "_.._etc")])
def test_the_report_on_a_set_is_named_for_it_in_the_folder_of_reports_and_a_seed_may_join(tmp_path, group, name):
    for seed in (0, 1, 2):
        FakeRun(tmp_path, f"q{seed}", [SMALL], run_set=(group, {"seed": seed})).train(0, 1.4)
        assert folder(tmp_path) == (f".reports/{name}" if seed else "q0/report")


@pytest.mark.slow
def test_a_report_that_fails_while_its_files_are_made_leaves_the_former_ones(tmp_path, monkeypatch):
    def files():
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.*")}

    write_report([], [Section("curve", "Curve", (chart("FLOPs"),))], ReportPaths(tmp_path), "pdf")
    before = files()
    assert before.keys() == {"report.html", "stages.csv", "figures/curve.pdf"}
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


@pytest.mark.slow
def test_output_takes_the_files_and_an_error_there_is_the_users(tmp_path):
    runs = tmp_path / "runs"
    ladder(runs)
    asked = ["report", "quick", "--runs-dir", runs, "--output"]
    out, _ = run_here(*asked, tmp_path / "paper", "--figures", "svg")
    assert f"Charts and tables: {tmp_path}/paper/report.html" in out
    assert (tmp_path / "paper/figures/compute-against-perplexity.svg").is_file()
    assert not (runs / "quick/report").exists()
    (tmp_path / "file").touch()
    assert run_here(*asked, tmp_path / "file", expect=2)[1] == f"growctl: {tmp_path}/file: File exists\n"
