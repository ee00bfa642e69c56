"""Sweeps and --group-by: tables by value, the best value, edges of the grid; and ladders compared with each other."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.analysis.runs import RunReport
from growctl.seeds import ladders, sweep
from growctl.seeds.group_by import GroupByError, read_grouping
from growctl.seeds.grouping import Grouping
from growctl.seeds.results import Results, results
from growctl.text.section import Paragraph, Section, Table
from tests.growctl.report.invented_reports import FLOPS, run_report, seed_runs

KEY = "learning_rate.peak"


def swept(losses: dict[float, list[float | None]], control: dict[float, float] | None = None) -> list[RunReport]:
    """A sweep of the peak: losses by seed for each value; a control's losses by value."""
    runs = []
    for peak, by_seed in losses.items():
        conditions = {"model.family": "tokenformer", KEY: peak}
        for seed, loss in enumerate(by_seed):
            fields: dict[str, Any] = {"group": "q", "overrides": {KEY: peak, "seed": seed}, "conditions": conditions}
            budgets: dict[float, float | None] = {1.0: control[peak] + seed / 1000} if control else {}
            runs += seed_runs(seed, loss, budgets, ladder=f"q-peak-{peak:g}", **fields)
    return runs


def said(section: Section | None) -> str:
    return " ".join(part.text for part in section.parts if isinstance(part, Paragraph)) if section else ""


def table(found: Results) -> list[list[str]]:
    section = sweep.section(found.sweeps)
    assert section
    [made] = [part for part in section.parts if isinstance(part, Table)]
    return [[cell.text for cell in row] for group in made.groups for row in group.rows]


def test_a_sweep_is_a_table_by_value_and_names_the_best_beyond_the_noise() -> None:
    found = results(swept({0.004: [2.0, 2.01], 0.002: [2.1, 2.11], 0.008: [2.2, None]}))
    assert [(row[0], row[2], row[-2:]) for row in table(found)] == [
        ("0.002", "2.1050", ["0, 1", "2 of 2"]),
        ("0.004", "2.0050", ["0, 1", "2 of 2"]),
        ("0.008", "2.2000", ["0", "1 of 2"]),
    ]
    text = found.headlines[0].sentence
    assert "Best: learning_rate.peak=0.004, with a mean loss of 2.0050 nats, 95 % interval" in text
    assert "The next best, learning_rate.peak=0.002, is 0.1000 nats worse: that is beyond the noise" in text
    assert "edge" not in text
    assert not found.ladders
    [headline] = found.headlines
    assert headline.sentence.startswith(
        "Best: learning_rate.peak=0.004, with a mean loss of 2.0050 nats, 95 % interval"
    )
    assert "Not known" not in headline.sentence


@pytest.mark.parametrize(("best", "words"), [(0.002, "smallest"), (0.008, "largest")])
def test_a_best_value_at_the_edge_of_the_grid_is_said_to_be_there(best: float, words: str) -> None:
    losses: dict[float, list[float | None]] = {peak: [2.0 if peak == best else 2.1] for peak in (0.002, 0.004, 0.008)}
    text = results(swept(losses)).headlines[0].sentence
    assert f"{best:g} is at the edge of the grid, the {words} {KEY} tried" in text
    assert "the noise between seeds is unknown" in text


def test_a_difference_within_the_noise_names_no_sure_winner() -> None:
    text = results(swept({0.002: [2.0, 2.2], 0.004: [2.1, 2.11], 0.008: [2.3, 2.3]})).headlines[0].sentence
    assert "that is within the noise between seeds" in text


def test_controls_are_tuned_as_the_ladder_is_and_compared_at_their_own_best() -> None:
    found = results(swept({0.002: [2.0, 2.01], 0.004: [2.1, 2.11]}, control={0.002: 2.3, 0.004: 2.2}))
    text = said(sweep.section(found.sweeps))
    assert f"Best for tokenformer-scratch-1x: {KEY}=0.004" in text
    assert "Each at its best value, at equal FLOPs: the ladder ended 0.1955 nats below tokenformer-scratch-1x" in text
    [headline] = found.headlines
    assert "the ladder ended 0.1955 nats below tokenformer-scratch-1x" in headline.sentence


def test_the_result_of_a_sweep_has_each_control_at_its_own_best_value() -> None:
    ladder: dict[float, list[float | None]] = {0.002: [1.9, 1.91, 1.92], 0.004: [2.0, 2.01, 2.02]}
    [headline] = results(swept(ladder, {0.002: 2.0, 0.004: 1.7})).headlines
    assert (headline.outcome, headline.measure) == ("lost", "equal flops")
    assert "Each at its best value, at equal FLOPs: the ladder ended 0.2090 nats above" in headline.sentence
    [same] = results(swept(ladder, {0.002: 2.0, 0.004: 2.1})).headlines
    assert same.outcome == "won"


def test_controls_that_were_tuned_less_than_the_ladder_are_a_caution() -> None:
    runs = swept({0.002: [1.9, 1.91], 0.004: [2.0, 2.01]}, {0.002: 2.0, 0.004: 1.7})
    [headline] = results([run for run in runs if run.control is None or run.overrides[KEY] == 0.002]).headlines
    assert any("fewer values were tried for tokenformer-scratch" in text for text in headline.cautions)


def test_a_best_value_that_diverged_with_some_seeds_says_so() -> None:
    [headline] = results(swept({0.002: [2.0, 2.0, 2.0], 0.004: [1.9, math.inf, math.inf]})).headlines
    assert "It diverged with seeds 1, 2, which does not count in the mean." in headline.sentence


def test_no_point_of_a_sweep_is_best_before_one_is_finished() -> None:
    found = results(swept({0.002: [None], 0.004: [None]}))
    assert [row[-1] for row in table(found)] == ["0 of 1", "0 of 1"]
    assert found.headlines[0].sentence == "None of its runs is finished."


def test_group_by_averages_over_seeds_only_and_names_no_best_among_seeds() -> None:
    runs = swept({0.002: [2.0, 2.2], 0.004: [2.1, 2.3]})
    values = {run.name: {KEY: run.conditions[KEY], "seed": run.seed} for run in runs}
    by_peak = results(runs, Grouping((KEY,), values))
    assert [row[0:2] for row in table(by_peak)] == [
        ["q (learning_rate.peak=0.002)", "0.002"],
        ["q (learning_rate.peak=0.004)", "0.004"],
    ]
    assert "Best" in said(sweep.section(by_peak.sweeps))
    by_seed = results(runs, Grouping(("seed",), values))
    assert [row[1] for row in table(by_seed)] == ["0", "0", "1", "1"]
    assert not by_seed.ladders
    assert "Best" not in said(sweep.section(by_seed.sweeps))


def test_group_by_reads_the_recorded_schedule_and_rejects_an_unknown_key(tmp_path: Path) -> None:
    runs = [replace(run_report(name, 2.0, conditions={KEY: 0.5}), directory=tmp_path / name) for name in "ab"]
    (tmp_path / "a").mkdir()
    text = "learning_rate: {peak: 2.0e-3}\nstages: [{name: s, train_tokens: 7}]\noptimizer: {betas: [0.9, 0.95]}\n"
    (tmp_path / "a/schedule.yaml").write_text(text)
    keys = [KEY, "stages.0.train_tokens", "optimizer.betas", "schedule", "seed"]
    assert read_grouping(runs, keys).values == {
        "a": dict(zip(keys, (0.002, 7, [0.9, 0.95], "s", 0), strict=True)),
        "b": dict(zip(keys, (0.5, None, None, "s", 0), strict=True)),
    }
    with pytest.raises(GroupByError, match=r"--group-by 'learning_rate\.peek': must be .* learning_rate\.peak"):
        read_grouping(runs, ["learning_rate.peek"])
    (tmp_path / "b").mkdir()
    (tmp_path / "b/schedule.yaml").write_text("a: [")
    with pytest.raises(GroupByError, match=r"b/schedule\.yaml cannot be read"):
        read_grouping(runs, [KEY])


def pair(**other: object) -> Results:
    second = run_report("second", 2.0, sizes=(1000, 3000))
    return results([run_report("first", 1.9), replace(second, **other)])  # type: ignore[arg-type]


def test_two_ladders_of_equal_cost_on_the_same_data_are_compared() -> None:
    found = pair()
    text = said(ladders.section(found.ladders))
    assert "At equal FLOPs, first ended 0.1000 nats below second (the noise between seeds is unknown)." in text
    assert "At equal loss, there is no figure: second has one finished model, and a curve needs two." in text


def test_ladders_of_other_data_or_cost_say_why_there_is_no_figure() -> None:
    assert "Not compared: they were trained and validated on different data." in said(
        ladders.section(pair(dataset_fingerprint="beef").ladders)
    )
    conditions = {"evaluation.max_sequences": 5}
    assert "they differ in evaluation.max_sequences" in said(ladders.section(pair(conditions=conditions).ladders))
    costly = run_report("costly", 1.8, sizes=(1000, 3000), budget=2.0)
    text = said(ladders.section(results([run_report("first", 1.9), costly]).ladders))
    assert "there is no result: costly has 2.00x the FLOPs of first." in text


def test_at_equal_loss_the_finished_models_of_one_ladder_are_the_curve() -> None:
    costly = run_report("costly", 1.8, sizes=(1000, 3000), budget=2.0)
    first = replace(costly.stages[0], decayed=True, validation_loss=2.0, perplexity=7.4)
    [found] = results([run_report("first", 1.9), replace(costly, stages=(first, costly.stages[1]))]).ladders
    assert costly.stages[0].cumulative_flops == FLOPS
    assert (found.first, found.second) == ("first", "costly")
    assert found.saving == pytest.approx(2**0.5)
