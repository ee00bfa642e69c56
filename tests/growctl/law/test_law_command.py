"""`growctl law fit` reads ledgers: releases, start checkpoints, controls, and what was held out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.law.measured import check_alike, read_models
from growctl.ledger.entries import BaseEntry
from growctl.runs.find import find_runs
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.runs import run_here
from tests.growctl.text.schemas import assert_follows_schema

CONDITIONS: dict[str, Any] = {"model.vocab_size": 100, "model.num_heads": 2, "optimizer.name": "muon"}
CONDITIONS |= {"learning_rate.peak": 0.01, "learning_rate.decay": 0.25}


def finished(
    runs: Path, name: str, steps: list[tuple[int, int]], loss: float, *, released: bool = False, **how: Any
) -> FakeRun:
    """A run of stages of these sizes and numbers of steps; the last one ends with `loss`."""
    stages = [replace(stage_of(f"s{n}", *one), num_layers=2, decayed=one is steps[-1]) for n, one in enumerate(steps)]
    shape = {"num_layers": 2, "hidden_size": 10, "batch_size": 5, "sequence_length": 200}
    conditions = CONDITIONS | {f"stages.{n}.{key}": value for n in range(len(steps)) for key, value in shape.items()}
    conditions |= {f"stages.{n}.attention_tokens": size for n, (size, _) in enumerate(steps)}
    if released:
        stages.append(replace(stage_of("s0/release", steps[0][0], 100), num_layers=2, decayed=True, branch_of="s0"))
    run = FakeRun(runs, name, stages, **(conditions | how))
    for number in range(len(stages)):
        run.train(number, loss if number == len(steps) - 1 else 5.0)
    return run


def loss_of(size: int, tokens: float) -> float:
    return float(1.0 + 30 / size**0.35 + 500 / tokens**0.4)


@pytest.mark.slow
def test_a_law_is_fitted_from_ledgers_and_written_whole(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for size in (100_000, 150_000, 250_000, 400_000):
        for steps in (1000, 2000, 5000):
            finished(runs, f"scratch-{size}-{steps}", [(size, steps)], loss_of(size, 1000 * steps))
    for n, (before, after) in enumerate((b, a) for b in (1000, 1500, 2500, 4000) for a in (1000, 2000, 3000)):
        sizes = ((100_000, 150_000, 250_000)[n % 3], (250_000, 400_000)[n % 2])
        tokens = 1000 * (0.7 * before + after)
        finished(runs, f"grown-{n}", [(sizes[0], before), (sizes[1] + 1000, after)], loss_of(sizes[1] + 1000, tokens))
    finished(runs, "test", [(100_000, 2000), (400_000, 2000)], 9.0)
    out = run_here("law", "fit", "--held-out", "test", "--output", "law.json", "--json", cwd=tmp_path)[0]
    assert (tmp_path / "law.json").read_text() == out
    document = json.loads(out)
    assert_follows_schema(document, "law-fit")
    assert document["terms"]["constant"]["estimate"] == pytest.approx(-0.357, abs=0.02)  # ln 0.7
    assert [each["measured"] for each in document["held_out"]] == [9.0]
    assert all(not model["name"].endswith("of test") for model in document["models"])
    said = run_here("law", "fit", "--output", "law.json", "scratch-100000-1000", expect=2, cwd=tmp_path)[1]
    assert "a law needs finished models" in said
    assert (tmp_path / "law.json").read_text() == out


def test_a_start_checkpoints_training_counts_and_an_unknown_one_leaves_the_run_out(tmp_path: Path) -> None:
    base = finished(tmp_path, "base", [(100_000, 1000)], 4.0)
    flops = 1000 * base.stages[0].step_flops.total
    for name, trainer, paid in (("on", "base", flops), ("lost", "gone", flops), ("early", "base", flops / 2)):
        start = BaseEntry("base", "hash", f"{trainer}, stage s0", 100_000, paid)
        finished(tmp_path, name, [(100_000, 500), (200_000, 500)], 3.5, base=start)
    runs = find_runs(tmp_path)
    models, left_out = read_models(runs, runs)
    assert [model.name for model in models] == ["s0 of base", "s1 of on"]
    assert [(each.num_parameters, each.tokens) for each in models[1].path] == [(100_000, 1.5e6), (200_000, 5e5)]
    assert models[1].flops == pytest.approx(flops + 500 * (1 + 2) * base.stages[0].step_flops.total)
    assert [why.partition(":")[0] for why in left_out] == ["early", "lost"]


def test_a_release_has_the_shape_of_its_stage_and_the_best_peak_of_each_seed_counts(tmp_path: Path) -> None:
    finished(tmp_path, "ladder", [(100_000, 1000), (200_000, 500)], 3.5, released=True)
    for peak, seed, loss in ((0.01, 1, 4.2), (0.02, 1, 4.0), (0.01, 2, 4.1)):
        how: dict[str, Any] = {"seed": seed, "learning_rate.peak": peak}
        finished(tmp_path, f"x-{peak}-{seed}", [(100_000, 3000)], loss, **how)
    release, *best, _ = read_models(find_runs(tmp_path), [])[0]
    assert [(each.width[1], each.tokens) for each in release.path] == [("100000", 1.1e6)]
    assert [(model.peak, model.seed, model.loss) for model in best] == [(0.01, 2, 4.1), (0.02, 1, 4.0)]


@pytest.mark.parametrize(("family", "counted"), [("tokenformer", ["ladder"]), ("decoder", ["ladder", "scratch"])])
def test_decoders_from_scratch_count_where_the_ladder_is_a_decoder(family: str, counted: list[str], tmp_path: Path):
    for name, kind, own in (("ladder", None, family), ("ladder-control-scratch", "decoder-scratch", "decoder")):
        how: dict[str, Any] = {"model.family": own, "seed": len(name)}
        finished(tmp_path, name, [(100_000, 1000)], 3.5, kind=kind, **how)
    runs = find_runs(tmp_path)
    check_alike(runs)
    assert [model.name.split("-")[-1].split()[-1] for model in read_models(runs, runs)[0]] == counted
