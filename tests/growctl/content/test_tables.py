"""Tables as Markdown and as LaTeX show every text unchanged, whatever characters it has."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from growctl.content import latex, markdown
from growctl.content.section import Cell, Column, Rows, Table
from growctl.text.escaping import visible

MARKUP = "\\`*_{}[]<>&|~$#%^\"'@!()-+.:/ \n\t1ewW"
TEXTS = st.text(
    st.one_of(st.sampled_from(MARKUP), st.characters(blacklist_categories=["Cs"])), max_size=40
) | st.sampled_from(
    [
        "https://a.b",
        "www.a.b",
        "a@b.c",
        "![x](y)",
        "&amp;",
        "<b>",
        "a---b",
        "1.23e15",
        "+1e-05",
        "-",
        "\\",
        "*",
        "[",
        "|",
    ]
)
COLUMNS = (Column("stage", is_number=False), Column("FLOPs so far"), Column("jump (nats/token)"))


def table(*texts: str, heading: str = "", notes: tuple[str, ...] = (), caption: str = "") -> Table:
    row = tuple(Cell(text) for text in (*texts, "", "", ""))[: len(COLUMNS)]
    return Table("a_b", COLUMNS, (Rows((row,), heading, "a remark" if heading else "", notes),), caption)


def shown(text: str) -> str:
    """What a reader sees of `text` in one line."""
    return " ".join(visible(" ".join(text.split())).split())


def cells_of(rendered: str) -> list[list[str]]:
    """The cells of the table in a Markdown document, as a parser reads them: by their text alone."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(rendered)
    rows: list[list[str]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            children = token.children or []
            assert {child.type for child in children} <= {"text", "text_special", "strong_open", "strong_close"}
            rows[-1].append("".join(child.content for child in children))
    return rows


@settings(deadline=None, max_examples=200)
@given(st.lists(TEXTS, min_size=3, max_size=3))
def test_a_markdown_parser_reads_every_cell_as_it_was(texts: list[str]) -> None:
    _, row = cells_of(markdown.markdown_table(table(*texts)))
    assert row == [shown(text) for text in texts]


def test_markdown_aligns_numbers_right_and_gives_a_group_its_own_row_and_notes() -> None:
    one = table("115k", "1.23e15", "+1e-05", heading="quick_start", notes=("It was *killed*.",), caption="Two.")
    assert markdown.markdown_table(one).splitlines() == [
        "| stage | FLOPs so far | jump (nats/token) |",
        "| ----- | -----------: | ----------------: |",
        r"| **quick\_start** a remark |              |                   |",
        "| 115k  |      1.23e15 |            +1e-05 |",
        "",
        r"- quick\_start: It was \*killed\*.",
        "",
        "Two.",
    ]


@pytest.mark.parametrize("text", ["`a`", "*a*", "_a_", "~~a~~", "[a](b)", "<b>a</b>", "&lt;", "a|b", "a\\\\|b"])
def test_a_markdown_parser_finds_no_markup_in_a_cell(text: str) -> None:
    assert cells_of(markdown.markdown_table(table(text)))[1][0] == text


@pytest.mark.parametrize("address", ["https://a.b", "www.a.b", "a@b.c"])
def test_github_does_not_make_an_address_a_link(address: str) -> None:
    assert not re.search(r"(?<!\\)://|www\.|(?<!\\)@", markdown.escape(address))


def unescaped(source: str) -> str:
    """What LaTeX prints for `source`, which has only commands that `escape` writes; asserts that it has no others."""
    back = {command: character for character, command in latex.SPECIAL.items()} | {"-{}": "-"}
    known = re.compile("|".join(map(re.escape, sorted(back, key=len, reverse=True))))
    rest = known.sub("", source)
    assert not set(rest) & set(latex.SPECIAL), rest
    assert "--" not in source
    return known.sub(lambda found: back[found[0]], source)


@settings(deadline=None, max_examples=200)
@given(TEXTS)
def test_latex_prints_every_text_as_it_was(text: str) -> None:
    assert unescaped(latex.escape(text)) == shown(text)


@pytest.mark.parametrize("character", "\\{}$&#%_~^<>|\"'`[]*")
def test_no_special_character_reaches_latex_bare(character: str) -> None:
    assert latex.escape(character) not in (character, "")
    assert unescaped(latex.escape(f"a{character}{character}b")) == f"a{character}{character}b"


def test_latex_aligns_numbers_right_and_writes_powers_of_ten() -> None:
    one = table("[115k]", "1.23e15", "-1.5e-05", heading="quick_start", notes=("100 % kept.",), caption="A & B")
    assert latex.latex_table(one).splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{A \& B}",
        r"  \label{tab:a-b}",
        r"  \begin{tabular}{@{}lrr@{}}",
        r"    \toprule",
        r"    stage & FLOPs so far & jump (nats/token) \\",
        r"    \midrule",
        r"    \multicolumn{3}{@{}l}{\textbf{quick\_start} a remark} \\",
        r"    {[}115k{]} & $1.23 \times 10^{15}$ & $-1.5 \times 10^{-5}$ \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \par\footnotesize quick\_start: 100 \% kept.",
        r"\end{table}",
    ]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("6.81e12, 0.94x", r"$6.81 \times 10^{12}$, 0.94x"),
        ("-0.031 to +0.5", r"$-0.031$ to $+0.5$"),
        ("1,234", "1,234"),
        ("2m 13s", "2m 13s"),
        ("262k-2", "262k-2"),
        ("-", "-"),
        ("99 %", r"99 \%"),
    ],
)
def test_numbers_in_a_cell_of_numbers_are_printed_as_numbers(text: str, printed: str) -> None:
    assert f"& {printed} &" in latex.latex_table(table("a", text))


@pytest.mark.parametrize("rendered", [markdown.markdown_table, latex.latex_table])
def test_a_table_without_rows_is_its_headings(rendered: Callable[[Table], str]) -> None:
    assert "FLOPs so far" in rendered(Table.of("empty", COLUMNS, []))
