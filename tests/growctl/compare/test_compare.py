"""Two runs compared: which is better, what their schedules differ in, and what `growctl compare` prints and refuses."""

import json
import math
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from growctl.compare.better import Outcome, outcome
from growctl.compare.figures import figures
from growctl.compare.schedules import SettingDifference, between
from growctl.compare.sections import compare_sections
from growctl.ledger.ledger import BaseEntry
from growctl.report.chart import Chart
from growctl.text.section import Paragraph
from tests.growctl.invented_runs import LARGE, SCRATCH, SMALL, FakeRun, control, ladder
from tests.growctl.report.invented_pairs import FIELDS, run, stage
from tests.growctl.runs import run_here
from tests.growctl.schedules import BASE, changed, parse

OPPOSITE = {"a": "b", "b": "a", "even": "even", None: None}


@given(FIELDS, FIELDS)
def test_the_outcome_for_b_and_a_mirrors_that_for_a_and_b(a: dict[str, Any], b: dict[str, Any]) -> None:
    first, second = run("a", **a), run("b", **b)
    one, other = outcome(first, second), outcome(second, first)
    assert other.better == OPPOSITE[one.better]
    assert (one.a_for_loss_of_b, one.b_for_loss_of_a) == (other.b_for_loss_of_a, other.a_for_loss_of_b)
    assert sorted(one.sentences) == sorted(other.sentences)
    if one.loss_difference is not None:
        assert other.loss_difference == -one.loss_difference
    assert one.flops_ratio is not None
    assert other.flops_ratio == pytest.approx(1 / one.flops_ratio)


@pytest.mark.parametrize(
    ("a", "b", "better", "said"),
    [
        ((2.0, 1e12), (2.1, 1.01e12), "a", "At equal FLOPs a is better by 0.100 nats."),
        ((2.0, 1e12), (2.1, 2e12), "a", "a is better: its loss is lower by 0.100 nats, for 0.50x the FLOPs."),
        ((2.0, 1e12), (2.0002, 1.01e12), "even", "At equal FLOPs they came out even."),
        ((2.0, 4e12), (2.0, 1e12), "b", "b is better: its loss is the same, for 0.25x the FLOPs."),
        ((2.0, 4e12), (2.1, 1e12), None, "At equal FLOPs there is no result: a ended lower by 0.100 nats, for 4.00x"),
    ],
)
def test_a_run_is_better_with_a_lower_loss_for_no_more_flops(
    a: tuple[float, float], b: tuple[float, float], better: str | None, said: str
) -> None:
    found = outcome(run("a", *a), run("b", *b))
    assert found.better == better
    assert found.sentences[0].startswith(said)


def test_the_cost_of_an_equal_loss_is_read_off_between_finished_models() -> None:
    release = stage("small/release", 1e11, 0.6e12, 2.2, branch_of="small")
    flops = math.sqrt(0.6e12 * 2e12)
    with_release = run("a", 2.0, 2e12, releases=(release,))
    found: Outcome = outcome(with_release, run("b", 2.1, 1e12))
    assert found.better is None
    assert found.a_for_loss_of_b is not None
    assert found.b_for_loss_of_a is not None
    assert found.a_for_loss_of_b.flops == pytest.approx(flops), "halfway between the releases' log FLOPs"
    assert found.a_for_loss_of_b.ratio == pytest.approx(flops / 1e12)
    assert found.b_for_loss_of_a.flops is None
    assert "did not reach that loss" in found.b_for_loss_of_a.why_not


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"loss": None}, "not known yet: no final loss of b."),
        ({"decays": False}, "the learning rate of b never decays."),
        (
            {"conditions": {"evaluation.max_sequences": 10}},
            "their losses were not measured alike (evaluation.max_sequences).",
        ),
        (
            {"dataset_fingerprint": "beef"},
            "losses of different datasets cannot be compared. Nothing here compares them.",
        ),
    ],
)
def test_a_comparison_that_shows_nothing_names_no_winner(fields: dict[str, Any], why: str) -> None:
    found = outcome(run("a"), run("b", **fields))
    assert (found.better, found.loss_difference, found.a_for_loss_of_b) == (None, None, None)
    [sentence] = found.sentences
    assert sentence.endswith(why)


def test_a_start_checkpoint_of_unknown_cost_makes_no_run_the_better_one() -> None:
    base = BaseEntry("checkpoint", "beef", None, 1000, None)
    found = outcome(run("a", 1.9, base=base), run("b"))
    assert (found.better, found.flops_ratio) == (None, None)
    assert found.b_for_loss_of_a
    assert found.b_for_loss_of_a.ratio is None
    assert outcome(run("a", 1.9, base=base), run("b", base=base)).better == "a"


def paragraphs(a: Any, b: Any, key: str) -> list[str]:
    [found] = [section for section in compare_sections(a, b, [a, b]) if section.key == key]
    return [part.text for part in found.parts if isinstance(part, Paragraph)]


def test_the_name_of_a_run_that_missed_a_loss_is_written_as_it_is() -> None:
    said = paragraphs(run("small", 2.0), run("large", 2.1), "result")
    assert any(". large did not reach that loss: its best is 2.1000" in sentence for sentence in said)


def test_a_perplexity_has_four_digits_also_where_the_last_is_0() -> None:
    [found] = [figure for figure in figures(run("a"), run("b", 2.1)) if figure.name == "perplexity"]
    assert found.shown(18.1) == "18.10"


def test_what_differs_without_design_is_named_below_the_result() -> None:
    doubtful = run("b", 2.1, conditions={"training.sequence_length": 128, "seed": 1})
    assert paragraphs(run("a"), doubtful, "result")[-1] == "The difference may come from what else differs: context."
    assert "This is one run of each: seeds alone may change a loss by as much." in paragraphs(
        run("a"), doubtful, "result"
    )
    seed = run("b", 2.1, conditions={"seed": 1})
    assert paragraphs(run("a"), seed, "result")[-1] == (
        "Nothing but the seed differs, so the difference of the losses is chance."
    )


CHANGES = {
    "seed": 4,
    "model.hidden_size": 64,
    "stages.1.train_steps": 30,
    "training.batch_size": 16,
    "learning_rate.peak": 2e-3,
    "optimizer.betas": [0.9, 0.99],
    "launch.devices": 2,
}


@given(st.sets(st.sampled_from(sorted(CHANGES))), st.sets(st.sampled_from(sorted(CHANGES))))
def test_the_settings_that_differ_are_those_that_were_changed_and_mirror_each_other(a: set[str], b: set[str]) -> None:
    one, other = (parse(changed({key: CHANGES[key] for key in keys})) for keys in (a, b))
    found = between(one, other)
    assert [setting.key for setting in found] == [key for key in CHANGES if key in a ^ b]
    assert between(other, one) == tuple(replace(setting, a=setting.b, b=setting.a) for setting in found)


def test_settings_of_a_stage_that_only_one_schedule_has_carry_their_units() -> None:
    longer = parse(
        changed({"stages": [*BASE["stages"], BASE["stages"][1] | {"name": "huge", "ffn_tokens": 16}], "controls": []})
    )
    found = {setting.key: setting for setting in between(parse(BASE), longer)}
    assert found["stages.2.train_steps"] == SettingDifference("stages.2.train_steps", None, 20, "optimizer steps")
    assert found["stages.2.name"].b == "huge"
    assert found["controls.0.kind"].a == "tokenformer-scratch"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A ladder with its schedule, a control of it, and a run without evaluations."""
    runs = tmp_path / "runs"
    ladder(runs)
    longer: dict[str, Any] = {"training.sequence_length": 128}
    control(runs, 800, 1.31, **longer)
    FakeRun(runs, "begun", [SMALL, LARGE])
    return runs


def write_schedule(directory: Path, changes: dict[str, Any]) -> None:
    schedule = parse(changed(changes)).model_dump(mode="json")
    (directory / "schedule.yaml").write_text(yaml.safe_dump(schedule, sort_keys=False))


CONTROL = f"quick-control-{SCRATCH}-800"


def test_the_command_says_first_how_fair_the_comparison_is_and_ends_with_the_schedules(runs: Path) -> None:
    write_schedule(runs / "quick", {})
    write_schedule(runs / CONTROL, {"learning_rate.peak": 5e-3})
    out, _ = run_here("compare", "quick", CONTROL, "--runs-dir", runs)
    headings = ("How fair the comparison is", "Which is better", "Losses and costs", "What differs in the schedules")
    places = [out.index(heading) for heading in headings]
    assert places == sorted(places)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "context 64 128" in lines
    assert "final loss 1.2800 1.3100 +0.0300" in lines
    assert "learning_rate.peak 0.001 0.005" in lines


def test_the_command_prints_one_document_and_writes_a_page_with_both_curves(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "compare.html"
    out, _ = run_here("compare", runs / "quick", CONTROL, "--runs-dir", runs, "--json", "--output", page.parent)
    document = json.loads(out)
    assert (document["a"], document["b"], document["comparable"]) == ("quick", CONTROL, "loss")
    assert document["settings"] is None, "no schedule is here"
    assert document["outcome"]["loss_difference"] == pytest.approx(-0.03)
    [context] = [each for each in document["fairness"] if each["what"] == "context"]
    assert (context["a"], context["b"], context["keys"]) == ("64", "128", ["training.sequence_length"])
    html = page.read_text()
    assert "How fair the comparison is" in html
    assert "<svg" in html


def test_runs_of_different_datasets_are_compared_without_a_winner_and_a_curve_only_in_bits_per_byte(runs: Path) -> None:
    charts = {}
    for name, text in (("same-text", "v"), ("other-text", "w")):
        a = run("a", conditions={"data.tokenizer": "t", "data.train_text": "r", "data.validation_text": "v"})
        hashes = {"data.tokenizer": "u", "data.train_text": "r", "data.validation_text": text}
        b = run(
            "b",
            dataset_fingerprint="beef",
            conditions=hashes,
            releases=(stage("r", 1e11, 1e12, 2.0, branch_of="small"),),
        )
        charts[name] = [
            part.key for section in compare_sections(a, b, []) for part in section.parts if isinstance(part, Chart)
        ]
    assert charts == {"same-text": ["bits-per-byte-against-compute"], "other-text": []}


def test_runs_of_one_name_in_two_runs_directories_are_told_apart_by_their_paths(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "others"
    ladder(other, final=1.4)
    document = json.loads(run_here("compare", "quick", other / "quick", "--runs-dir", runs, "--json")[0])
    assert (document["a"], document["b"]) == (str(runs / "quick"), str(other / "quick"))
    assert document["outcome"]["better"] == "a"


def copied(runs: Path) -> None:
    shutil.copytree(runs / "quick", runs / "copied")


def newer(runs: Path) -> None:
    connection = sqlite3.connect(runs / "begun/ledger.db")
    connection.execute("CREATE TABLE something_new (x)")
    connection.execute("PRAGMA user_version = 9")
    connection.close()


@pytest.mark.parametrize(
    ("names", "prepare", "said"),
    [
        (("quick", "quikc"), None, "no run 'quikc' in {runs}; the nearest is quick"),
        (("quick", "quick"), None, "quick and quick are the same run; name two different runs"),
        (("quick", "copied"), copied, "copied is a copy of quick; name two different runs"),
        (("quick", "begun"), None, "{runs}/begun: the run has no evaluation yet; compare it once it has one"),
        (("quick", "begun"), newer, "{runs}/begun/ledger.db: written in format 9 by another version of growctl"),
    ],
)
def test_what_cannot_be_compared_is_one_message(runs: Path, names: tuple[str, str], prepare: Any, said: str) -> None:
    if prepare:
        prepare(runs)
    out, err = run_here("compare", *names, "--runs-dir", runs, expect=2)
    assert out == ""
    assert err.startswith(f"growctl: {said.format(runs=runs)}")
    assert err.count("\n") == 1
