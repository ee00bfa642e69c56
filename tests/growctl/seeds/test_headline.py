"""The result in one sentence: with its interval, or the honest alternative."""

import math
from dataclasses import replace
from typing import Any

import pytest

from growctl.analysis.runs import ControlToCome, RunReport
from growctl.ledger.ledger import BaseEntry
from growctl.report.results import verdicts
from growctl.seeds.headline import ONE_SEED, Headline, section
from growctl.seeds.results import results
from growctl.text.section import Paragraph
from tests.growctl.report.invented_reports import run_report, seed_runs


def only(runs: list[RunReport]) -> Headline:
    [headline] = results(runs).headlines
    return headline


def seeds(ladders: list[float], controls: dict[float, float | None], kind: str = "tokenformer-scratch") -> Headline:
    return only([run for seed, loss in enumerate(ladders) for run in seed_runs(seed, loss, controls, kind=kind)])


def test_a_saving_has_its_number_its_interval_and_its_seeds() -> None:
    found = seeds([1.9, 1.9, 1.9], {0.5: 2.2, 1.0: 2.0, 2.0: 1.8})
    assert found.sentence == (
        "Training 2k parameters from scratch to the same loss takes 1.41x the FLOPs that growing to 2k parameters took "
        "(95 % interval 1.41x to 1.41x, 3 seeds)."
    )
    assert (found.outcome, found.measure, found.against) == ("won", "equal loss", "tokenformer-scratch")
    assert found.saving == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(
    ("ladders", "controls", "outcome", "words"),
    [
        ([1.9], {1.0: 2.0, 2.0: 1.8}, "won", "takes 1.41x the FLOPs that growing to 2k parameters took"),
        ([2.1], {0.5: 2.2, 1.0: 2.0}, "lost", "takes only 0.71x the FLOPs that growing"),
        ([2.0], {1.0: 2.0, 2.0: 1.8}, "even", "takes about the FLOPs that growing to 2k parameters took, 1.00x"),
        ([1.9, 2.1], {0.5: 2.2, 1.0: 2.0, 2.0: 1.8}, "within noise", "which is within the noise between seeds"),
        ([1.5], {1.0: 2.0, 2.0: 1.8}, "won", "won: even with 2.00x its FLOPs, training 2k"),
        ([2.1], {0.5: 2.0}, "lost", "lost: with only 0.50x its FLOPs, training 2k"),
        ([1.9], {1.0: 2.0}, "won", "a loss 0.100 nats lower than training 2k parameters from scratch (1 seed"),
        ([2.1], {0.99: 2.0}, "lost", "reached a loss 0.100 nats higher than"),
        (
            [1.9, 2.4],
            {1.0: 2.0},
            "within noise",
            "0.150 nats higher than training 2k parameters from scratch (95 %",
        ),
        ([2.0], {0.5: 2.3}, "unknown", "Not known: no control that counts has the ladder's FLOPs"),
    ],
)
def test_the_sentence_says_won_lost_even_or_noise(
    ladders: list[float], controls: dict[float, float | None], outcome: str, words: str
) -> None:
    found = seeds(ladders, controls)
    assert words in found.sentence
    assert found.outcome == outcome
    assert ("noise is unknown" in found.sentence) == (len(ladders) == 1 and "(1 seed," in found.sentence)


def test_without_a_result_it_says_what_is_missing() -> None:
    ladder = run_report("q", 1.9)
    assert only([ladder]).sentence == "Not known: q has no controls, so there is nothing to compare it with."
    assert only([run_report("q", None)]).sentence == "Not known yet: q is not finished."
    assert only([run_report("q", math.nan)]).sentence == "Not known yet: q diverged."
    waiting = tuple(
        ControlToCome(f"q-control-best-scratch-{size}", "best-scratch", size, state)
        for size, state in ((1000, "running"), (2000, "not started"))
    )
    assert only([replace(ladder, controls_to_come=waiting)]).sentence == (
        "Not known yet: 2 of 2 controls do not count: best-scratch-1000 (running), best-scratch-2000 (not started)."
    )


def test_seeds_that_do_not_count_are_part_of_the_number_of_seeds() -> None:
    runs = [run for seed in (0, 1) for run in seed_runs(seed, 1.9, {1.0: 2.0, 2.0: 1.8})]
    runs += seed_runs(2, math.nan, {1.0: 2.0, 2.0: 1.8})
    assert "2 of 3 seeds)" in only(runs).sentence


def test_the_best_size_from_scratch_decides_before_weaker_bars() -> None:
    runs = seed_runs(0, 1.9, {1.0: 2.0, 2.0: 1.8})
    best = [
        run_report(
            f"q-seed-0-control-best-scratch-1k-{budget}", loss, sizes=(1000,), budget=budget, kind="best-scratch"
        )
        for budget, loss in ((0.5, 1.95), (1.0, 1.85))
    ]
    found = only([*runs, *(replace(run, control_of="q-seed-0") for run in best)])
    assert found.against == "best-scratch"
    assert found.outcome == "lost"


CURVE: dict[float, float | None] = {0.5: 2.2, 1.0: 2.0, 2.0: 1.8}
"""A ladder of loss 1.9 saves a factor of sqrt(2)."""


def three(loss: float = 1.9, **fields: Any) -> list[RunReport]:
    return [run for seed in range(3) for run in seed_runs(seed, loss + seed / 1000, CURVE, **fields)]


def test_a_lead_over_the_best_control_that_is_within_the_noise_is_no_win() -> None:
    runs = [run for seed, loss in enumerate([1.6, 1.9, 1.75]) for run in seed_runs(seed, loss, {1.0: 1.85, 2.0: 1.8})]
    found = only(runs)
    assert (found.outcome, found.measure) == ("within noise", "equal flops")


def test_a_saving_without_an_interval_gives_way_to_equal_flops_and_their_noise() -> None:
    found = seeds([1.7, 1.95, 1.6], CURVE)
    assert (found.outcome, found.measure, found.saving) == ("within noise", "equal flops", None)


def test_a_saving_says_when_the_difference_at_equal_flops_is_within_the_noise() -> None:
    curves: list[dict[float, float | None]] = [
        {0.5: 3.3245, 1.0: 2.8691, 2.0: 2.6624},
        {0.5: 3.4777, 1.0: 2.8300, 2.0: 2.6804},
    ]
    curves.append({0.5: 3.3043, 1.0: 2.8874, 2.0: 2.6554})
    ladders = [2.7587, 2.7870, 2.8036]
    found = only([run for seed in range(3) for run in seed_runs(seed, ladders[seed], curves[seed])])
    assert found.measure == "equal loss"
    assert "But at equal FLOPs, growing to 2k parameters reached a loss 0.079 nats lower" in found.sentence
    assert found.sentence.endswith("which is within the noise between seeds.")


def test_a_control_that_growing_loses_to_is_named_below_one_that_it_beats() -> None:
    runs = three()
    for run in [run for run in runs if run.control]:
        assert run.final_loss
        name = run.name.replace("tokenformer", "transformer")
        better = replace(run.stages[-1], validation_loss=run.final_loss - 0.3)
        runs.append(replace(run, name=name, recorded_name=name, control="transformer-scratch", stages=(better,)))
    found = only(runs)
    assert (found.outcome, found.against) == ("won", "tokenformer-scratch")
    assert any("worse" in text and "a Transformer of 2k parameters" in text for text in found.cautions)


def test_a_stricter_bar_that_is_still_to_come_is_a_caution() -> None:
    waiting = (ControlToCome("q-seed-0-control-best-scratch-1k", "best-scratch", 1000, "not started"),)
    first, *rest = three()
    assert "best-scratch-1k (not started" in " ".join(only([replace(first, controls_to_come=waiting), *rest]).cautions)
    best = [run_report("q-seed-0-control-best-scratch-2k", 1.7, sizes=(2000,), kind="best-scratch", of="q-seed-0")]
    assert any(
        "training the best size from scratch has no result yet: no control of 1k" in text
        for text in only([*three(), *best]).cautions
    )


def test_a_ladder_that_diverged_is_named_beside_the_result_of_the_others() -> None:
    found = only([*three(), *seed_runs(3, math.inf, CURVE)])
    assert (found.outcome, found.seeds) == ("won", (0, 1, 2))
    assert "Caution: the ladder diverged with seed 3, which does not count." in found.cautions


def test_a_control_left_out_because_few_seeds_have_it_is_a_caution() -> None:
    extra = run_report("q-seed-0-control-tokenformer-scratch-1.5x", 1.5, sizes=(2000,), budget=1.5)
    found = only([*three(), replace(extra, control="tokenformer-scratch", control_of="q-seed-0")])
    assert any("tokenformer-scratch-1.5x is left out" in text for text in found.cautions)


def test_a_start_checkpoint_of_unknown_cost_leaves_nothing_won_but_a_loss_is_a_loss() -> None:
    base = BaseEntry("checkpoint", "beef", None, 1000, None)
    won, lost = (only([replace(run, base=None if run.control else base) for run in three(loss)]) for loss in (1.9, 2.1))
    assert (won.outcome, won.saving, lost.outcome) == ("unknown", None, "lost")
    assert won.sentence.startswith("Not known, because nothing says what the start checkpoint cost (start.flops).")


@pytest.mark.parametrize("free", [{"ladder"}, {"control"}, {"ladder", "control"}])
def test_runs_that_cost_nothing_have_no_result(free: set[str]) -> None:
    runs = [
        replace(run, stages=tuple(replace(stage, flops=0.0, cumulative_flops=0.0) for stage in run.stages))
        if ("control" if run.control else "ladder") in free
        else run
        for run in three()
    ]
    assert only(runs).outcome == "unknown"
    assert all("Nothing to compare" in said[0] for _, said in verdicts(runs))


def test_several_ladders_have_a_sentence_each_with_the_name_first() -> None:
    other = run_report("other", 1.7, sizes=(1000, 3000))
    found = results([*seed_runs(0, 1.9, {1.0: 2.0, 2.0: 1.8}), other]).headlines
    shown = section(found)
    assert shown
    texts = [(part.tone, part.text) for part in shown.parts if isinstance(part, Paragraph)]
    assert [text.partition(":")[0] for tone, text in texts if tone == "strong"] == ["other", "q-seed-0"]
    assert [text for tone, text in texts if tone == "note"] == [
        "Caution: only 2 control budgets; a fair curve needs 3 or more.",
        ONE_SEED,
    ]


def test_a_loss_that_is_lower_has_an_interval_of_how_much_lower() -> None:
    found = seeds([1.8, 1.9, 1.85], {1.0: 2.0})
    assert found.interval
    assert found.interval.high < 0
    words = f"nats lower than training 2k parameters from scratch (95 % interval {-found.interval.high:.3f}"
    assert words in found.sentence


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("transformer-scratch", "Training a Transformer of 2k parameters from scratch to the same loss takes 1.41x"),
        ("single-jump", "Growing to 2k parameters in a single jump to the same loss takes 1.41x the FLOPs that this"),
        ("official-growth", "Growing to 2k parameters as the official code does to the same loss takes 1.41x"),
    ],
)
def test_each_kind_of_control_is_named_in_words(kind: str, sentence: str) -> None:
    assert seeds([1.9], {1.0: 2.0, 2.0: 1.8}, kind).sentence.startswith(sentence)
