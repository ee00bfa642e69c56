"""A cleaned run and a run that reuses its training, after real training."""

import shutil
from pathlib import Path

from growctl.runs.verify import check, find_targets
from tests.growctl.runs import final_hashes, run


def test_a_run_that_reuses_a_cleaned_one_stays_intact_and_both_stay_finished(two_ranks, runs_dir: Path):
    """Running a cleaned run again trains nothing and changes nothing."""
    schedule, trained = two_ranks
    shutil.copytree(trained, runs_dir, dirs_exist_ok=True)
    command = ("run", schedule, "launch.devices=2", "--runs-dir", runs_dir)
    run(*command, "--name", "reuser")
    steps = list((runs_dir / "tiny").glob("stages/*/step_*"))
    before = final_hashes(runs_dir / "tiny")

    out, _ = run("clean", "--trunks", "--yes", "--runs-dir", runs_dir)

    assert f"removed {len(steps)} directories" in out
    assert steps
    assert not any(path.exists() for path in steps)
    found = [check(target) for name in ("tiny", "reuser") for target in find_targets(runs_dir / name)]
    assert all(result.whole for result in found), [result.problem for result in found]
    for name in ("tiny", "reuser"):
        out, _ = run(*command, "--name", name)
        assert "resuming" not in out
    assert final_hashes(runs_dir / "tiny") == before == final_hashes(runs_dir / "reuser")
