"""The result in one sentence: with its interval, or the honest alternative."""

import math
from dataclasses import replace

import pytest

from growctl.content.section import Paragraph
from growctl.report.headline import ONE_SEED, Headline, section
from growctl.report.read import ControlToCome, RunReport
from growctl.report.results import results
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
