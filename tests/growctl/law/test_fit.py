"""A law is recovered from runs that follow it, tests itself on held-out runs, and refuses what fits no law."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.law.fit import fit_law
from growctl.law.formula import TERMS, Form, Formula, Law, Paths, Segment
from growctl.runs.runs import RunReport
from growctl.text.documents import document_text
from model.errors import UserError
from tests.growctl.law.invented_law import LAW, WORTH, loss_of, run_of, study
from tests.growctl.text.schemas import assert_follows_schema


@pytest.fixture(scope="module")
def runs() -> list[RunReport]:
    return study()


@pytest.fixture(scope="module")
def law(runs) -> Law:
    return fit_law(runs, draws=60)


FRONTIER = np.array([[114_816, 163_968, 262_272, 360_576, 557_184]] * 2) * [[1.0], [6.0]] + [[0.0], [146_688.0]]
"""The study's sizes and their FLOPs per token."""

LAWS: list[tuple[Sequence[float], Mapping[str, float], Sequence[str], int]] = [
    (LAW, WORTH, ("tokens",), 1),
    ((0.6, 90.0, 0.4, 300.0, 0.38), {"after": 0.4}, ("tokens", "depth"), 2),
    ((1.4, 25.0, 0.3, 5000.0, 0.55), {"constant": -0.8, "depth": 0.6}, ("tokens", "depth", "both"), 3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("parameters", "worth", "axes", "seed"), LAWS)
def test_a_known_law_is_recovered_inside_its_intervals(parameters, worth, axes, seed) -> None:
    law = fit_law(study(parameters, worth, noise=0.01, axes=axes, seed=seed, num_grown=40), draws=60)
    truth = dict(zip("EAaBb", parameters, strict=True)) | worth
    found = law.parameters | law.terms
    assert set(worth) <= set(law.terms)
    outside = [name for name, value in truth.items() if not found[name].low <= value <= found[name].high]
    assert len(outside) <= 1, f"{outside} of {len(truth)} 95% intervals miss"
    assert (law.form, law.counts) == ("effective tokens", "all parameters")
    assert law.rms["scratch"] == pytest.approx(0.01, rel=0.35)


def test_equal_input_in_any_order_gives_an_equal_document_that_follows_its_schema(runs, law) -> None:
    text = document_text(law)
    assert document_text(fit_law(runs[::-1], draws=60)) == text
    assert Law.model_validate_json(text) == law
    assert_follows_schema(json.loads(text), "law-fit")


def test_held_out_runs_test_the_law_and_do_not_change_it(runs, law) -> None:
    steps = ((3, 16, 2e6), (3, 64, 2e6))
    flops = run_of("x", steps, 1.0).cumulative_flops
    rival = (3, 32, flops / run_of("x", [(3, 32, 1.0)], 1.0).cumulative_flops)
    tests = [
        run_of(f"{name}-{seed}", path, loss_of(path) + shift + 0.01 * seed, seed)
        for name, path, shift in (("grown", steps, 0.3), ("rival", [rival], 0.0))
        for seed in range(3)
    ]
    tested = fit_law(runs, tests, draws=60)
    assert tested.model_copy(update={"held_out": (), "rms": law.rms}) == law.model_copy(update={"rms": law.rms})
    grown, scratch = sorted(tested.held_out, key=lambda each: not each.is_grown)
    assert scratch.predicted == pytest.approx(loss_of([rival]), abs=0.02)
    assert (grown.opponent, grown.measured) == (scratch.name, pytest.approx(loss_of(steps) + 0.31))
    assert [each.standard_error for each in tested.held_out] == pytest.approx([0.01 / 3**0.5] * 2)
    assert grown.measured_difference.estimate == pytest.approx(grown.measured - scratch.measured)
    assert grown.predicted_difference == pytest.approx(grown.predicted - scratch.predicted)
    assert (law.caution, "failed its test" in tested.caution) == ("", True)
    assert grown.advice == ("right" if grown.predicted > scratch.predicted else "wrong")


def test_a_term_without_an_effect_is_dropped_and_a_base_token_then_counts_like_any_other() -> None:
    law = fit_law(study(worth={}, seed=4), draws=60)
    assert (law.terms, set(law.dropped)) == ({}, set(TERMS))
    assert "holds 0" in law.dropped["constant"]


def test_seeds_and_trainings_that_two_runs_share_count_once(runs, law) -> None:
    copies = [replace(run, name=f"copy-of-{run.name}") for run in runs]
    assert len(fit_law([*runs, *copies], draws=2).models) == len(law.models)


def test_effective_tokens_that_fail_give_way_to_the_difference_to_the_best_size(runs) -> None:
    formula, odd = Formula((), "difference", FRONTIER), []
    for run in (run for run in runs if len(run.stages) > 1):
        best = formula.best_scratch(np.array([LAW]), np.array([run.cumulative_flops]))[0, 0]
        odd.append(replace(run, stages=(*run.stages[:-1], replace(run.stages[-1], validation_loss=best + 0.5))))
    law = fit_law([*(run for run in runs if len(run.stages) == 1), *odd], draws=10)
    assert (law.form, law.form_p < 0.01, list(law.terms)) == ("difference", True, ["constant"])
    assert law.terms["constant"].estimate == pytest.approx(0.5, abs=0.02)
    assert law.rms["grown"] == pytest.approx(0.0, abs=0.03)


@given(st.integers(1, 4), st.floats(1e6, 1e7), st.floats(1e5, 1e7), st.sampled_from(["effective tokens", "difference"]))
def test_with_w_of_1_a_ladder_ends_as_if_from_scratch(times: int, before: float, after: float, form: Form) -> None:
    small, large = Segment(100_000, 0, 2, (1,), before), Segment(100_000 * (1 + times), 0, 2, (2,), after)
    paths = Paths([[small, large], [replace(large, tokens=before + after)]], [1e12, 1e12], "all parameters")
    formula = Formula((), form, FRONTIER)
    grown, scratch = formula.losses(np.array([LAW]), paths)[0]
    expected = scratch if form == "effective tokens" else formula.best_scratch(np.array([LAW]), paths.flops_R)[0, 0]
    assert grown == pytest.approx(expected)


def test_the_frontier_costs_what_its_best_size_needs_for_a_loss() -> None:
    formula = Formula((), "effective tokens", FRONTIER)
    c_MP, flops_R = np.array([LAW, (0.9, *LAW[1:])]), np.array([1e12, 1e13])
    assert formula.cost(c_MP, formula.best_scratch(c_MP, flops_R)) == pytest.approx(np.tile(flops_R, (2, 1)))
    assert formula.cost(c_MP, np.full((2, 1), 0.5)) == pytest.approx(np.inf)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"dataset_fingerprint": "beef"},
            r"^no law fits scratch-16-1000000-0 and the runs before it, grown-0 and so on: their datasets differ$",
        ),
        ({"optimizer.name": "adamw"}, r"^no law fits .*: optimizer\.name \(muon against adamw\)$"),
        ({"evaluation.max_sequences": 5}, r"were measured differently: evaluation\.max_sequences \(- against 5\)$"),
        ({"stages.0.batch_size": 32}, r": stages\.batch_size \(\[64\] against \[32\]\)$"),
        ({"learning_rate.decay": 0.5}, r": learning_rate\.decay \(0\.25 against 0\.5\)$"),
        ({"growth.ramp": 0.1}, r"^no law fits grown-9 .*: growth\.ramp \(0\.05 against 0\.1\)$"),
    ],
)
def test_runs_that_differ_in_what_a_law_shares_are_rejected(runs, changed: dict[str, Any], message: str) -> None:
    first = next(run for run in runs if run.name == "grown-9") if "growth.ramp" in changed else runs[0]
    others = [run for run in runs if run is not first]
    fields = {key: value for key, value in changed.items() if key == "dataset_fingerprint"}
    conditions = first.conditions | {key: value for key, value in changed.items() if key not in fields}
    with pytest.raises(UserError, match=message):
        fit_law([replace(first, conditions=conditions, **fields), *others])


@pytest.mark.parametrize(
    ("keeps", "found"),
    [
        (lambda run: "-32-" in run.name or "grown" in run.name, r"\(here: 163,968 parameters at 5\).*\(here: 24\)$"),
        (lambda run: "scratch" in run.name, r"12 settings or more \(here: 0\)$"),
    ],
)
def test_too_few_sizes_lengths_or_ladders_are_rejected_with_what_a_law_needs(runs, keeps, found: str) -> None:
    needs = r"^a law needs finished models: from scratch, 4 sizes at 3 lengths each or more "
    with pytest.raises(UserError, match=needs + r".*" + found):
        fit_law([run for run in runs if keeps(run)])
