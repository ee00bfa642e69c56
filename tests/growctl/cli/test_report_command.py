"""`growctl report`: how runs are grouped, and what it says of a key that no schedule has."""

import json
from pathlib import Path

import pytest

from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control
from tests.growctl.runs import run_here


@pytest.mark.slow
def test_a_report_on_seeds_has_one_result_and_group_by_seed_one_for_each(tmp_path: Path) -> None:
    for seed, loss in enumerate((1.30, 1.32)):
        run = FakeRun(tmp_path, f"quick-seed-{seed}", [SMALL, LARGE], seed=seed, run_set=("quick", {"seed": seed}))
        run.train(0, 1.42).train(1, loss, start=1.42)
        control(tmp_path, 933, loss + 0.1, of=run.entry.name, seed=seed)
    for options, seeds in (((), [[0, 1]]), (("--group-by", "seed"), [[0], [1]])):
        out, _ = run_here("report", "quick", "--runs-dir", tmp_path, *options, "--json")
        assert [headline["seeds"] for headline in json.loads(out)["results"]["headlines"]] == seeds
    _, err = run_here("report", "--runs-dir", tmp_path, "--group-by", "sed", expect=2)
    assert "--group-by 'sed': must be seed, schedule or a dotted key" in err
