"""Published figures beside measured ones: a layer of their own that changes no result."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.report.chart import Chart
from growctl.report.documents import report_document
from growctl.report.published import _FOLDER, PublishedShape, load_overlay, overlay_names, published_series, section
from growctl.report.sections import report_sections
from growctl.runs.find import find_runs
from growctl.text.documents import plain
from model.config import TransformerConfig, num_parameters
from model.errors import UserError
from model.flops import training_flops_per_token
from tests.growctl.invented_runs import control, ladder
from tests.growctl.text.schemas import assert_follows_schema


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A ladder with two controls."""
    ladder(tmp_path / "runs")
    control(tmp_path / "runs", 500, 1.40)
    control(tmp_path / "runs", 1400, 1.20)
    return tmp_path / "runs"


@pytest.mark.parametrize("name", overlay_names())
def test_every_shipped_file_loads_and_names_its_source(name: str) -> None:
    overlay = load_overlay(name)
    assert "2410.23168" in overlay.source or "github.com/Haiyang-W" in overlay.source
    assert published_series(overlay)


def test_the_papers_table_is_copied_as_published() -> None:
    found = {row.model: row.perplexity for row in load_overlay("paper-openwebtext").rows}
    assert len(found) == 17
    assert found["Tokenformer 1.4B after 60B"] == 11.60
    assert found["Tokenformer 354M after 15B"] == 14.58
    assert found["Transformer 1.4B on 300B"] == 11.63


@pytest.mark.parametrize(
    ("shape", "millions"),
    [("tokenformer-124m", 123.6), ("tokenformer-354m", 354.2), ("tokenformer-757m", 753.8), ("tokenformer-1.4b", 1310)],
)
def test_the_shapes_have_the_published_numbers_of_parameters(shape: str, millions: float) -> None:
    shapes = yaml.safe_load((_FOLDER / "paper-openwebtext.yaml").read_text())["shapes"]
    config = PublishedShape(**shapes[shape]).config()
    assert num_parameters(config) / 1e6 == pytest.approx(millions, rel=1e-3)


def test_flops_that_were_not_published_follow_from_shape_and_tokens_and_count_the_base() -> None:
    models = {model.model: model for model in load_overlay("readme-openwebtext2").rows}
    config = TransformerConfig(num_layers=24, hidden_size=1536, ffn_size=6144, num_heads=16, vocab_size=50304)
    per_token = training_flops_per_token(config, 1024).total
    scratch = models["TransFormer-757M, 60k steps"].costs["flops"]
    assert scratch == pytest.approx(60_000 * 512 * 1024 * per_token)
    base, grown = (models[name] for name in ("TokenFormer-354M", "TokenFormer-757M, 60k steps"))
    longer = models["TokenFormer-757M, 120k steps"].costs["flops"] - base.costs["flops"]
    assert longer == pytest.approx(2 * (grown.costs["flops"] - base.costs["flops"]))
    assert base.costs.keys() == {"flops"}
    assert grown.flops_computed


def test_a_published_series_is_labelled_and_starts_at_its_base() -> None:
    every = published_series(load_overlay("paper-openwebtext"))
    assert {series.role for series in every} == {"published"}
    assert all(series.name.endswith("(published)") for series in every)
    grown = next(series for series in every if "15B a stage" in series.name)
    assert [mark.y for mark in grown.marks] == [16.41, 14.58, 13.08, 12.14]  # it starts at its base


def test_published_figures_change_no_verdict_headline_or_measured_mark(runs: Path) -> None:
    found, overlays = find_runs(runs), [load_overlay(name) for name in overlay_names()]
    without, with_them = report_sections(found), report_sections(found, overlays=overlays)
    assert [section for section in with_them if section.key not in ("published", "compute")] == [
        section for section in without if section.key != "compute"
    ]
    charts = [next(part for part in each[1].parts if isinstance(part, Chart)) for each in (without, with_them)]
    measured = tuple(series for series in charts[1].series if series.role != "published")
    assert measured == charts[0].series
    assert len(charts[1].series) > len(measured)
    document = asdict(report_document(found, overlays=overlays))
    assert len(document.pop("published")) == len(overlays)
    assert document | {"published": ()} == asdict(report_document(found))
    assert_follows_schema(plain(report_document(found, overlays=overlays)), "report")


def test_the_section_says_that_nothing_in_it_was_measured() -> None:
    found = section([load_overlay("paper-openwebtext")])
    assert found
    assert "growctl did not measure" in str(found.parts[0])
    assert section([]) is None


def test_a_users_own_file_may_give_every_cost(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: Mine\nsource: a paper, table 1\ndata: text\n"
        "rows: [{model: a, series: s, perplexity: 7.4, flops: 2e20, device_hours: 2, money: 30}]\n"
    )
    [series] = published_series(load_overlay(str(path)))
    [mark] = series.marks
    assert (mark.x, mark.y) == ({"flops": 2e20, "device_hours": 2.0, "money": 30}, 7.4)


README = (_FOLDER / "readme-openwebtext2.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tokens: 314572800000", "tokens: -3", "rows.0.tokens = -3: must be greater than 0"),
        ("perplexity: 11.9", "perplexity: .nan", "rows.0.perplexity = NaN: must be a finite number"),
        ("perplexity: 11.9", "perplexity: '11.9'", "rows.0.perplexity = '11.9': must be a valid number"),
        ("series: TokenFormer,", "serie: TokenFormer,", "rows.0.serie = 'TokenFormer': no such key; did you mean 'ser"),
        ("from: TokenFormer-354M", "from: TokenFormer-355M", "must be the model of a row above; did you mean 'TokenF"),
        ("shape: tokenformer-354m", "shape: tokenformer-35m", "shape = 'tokenformer-35m': must be one of shapes; did"),
        ("title:", "? [", "cannot be read: line "),
        (README, "just text", "must be"),
    ],
)
def test_a_wrong_file_gets_one_clear_message(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(README.replace(old, new, 1))
    with pytest.raises(UserError, match=re.escape(message)):
        load_overlay(str(path))


def test_an_unknown_name_is_unusable_input_with_the_nearest_names_before_any_run_is_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", "--runs-dir", str(tmp_path), "--overlay", "paper-openwebtxt"])
    assert isinstance(result.exception, UserError)
    assert "--overlay paper-openwebtxt: is neither a file nor one of paper-growth-methods," in str(result.exception)
    assert "the nearest are paper-openwebtext" in str(result.exception)


def test_a_row_without_a_cost_is_listed_but_not_drawn() -> None:
    overlay = load_overlay("paper-growth-methods")
    assert {series.name for series in published_series(overlay)} == {"Tokenformer (published)"}
    found = section([overlay])
    assert found
    assert "Net2Net 757M" in str(found.parts)
