"""A cleaned run and a run that shares its files, after real training."""

import shutil
from pathlib import Path

from growctl.verify.integrity import check, find_targets
from tests.growctl.runs import final_hashes, run
from tests.growctl.storage.stored import linked_copy


def test_a_cleaned_run_and_one_that_shares_its_files_are_intact_and_finished(two_ranks, runs_dir: Path):
    """Running a cleaned run again trains nothing and changes nothing."""
    schedule, trained = two_ranks
    shutil.copytree(trained, runs_dir, dirs_exist_ok=True)
    shutil.copytree(runs_dir / "tiny", runs_dir / "sharer", ignore=shutil.ignore_patterns("step_*", "final", "initial"))
    for manifest in (runs_dir / "tiny").glob("stages/*/*/manifest.json"):
        linked_copy(manifest.parent, runs_dir / "sharer" / manifest.parent.relative_to(runs_dir / "tiny"))
    before, steps = final_hashes(runs_dir / "tiny"), list((runs_dir / "tiny").glob("stages/*/step_*"))

    run("clean", "tiny", "--trunks", "--yes", "--runs-dir", runs_dir)

    assert steps
    assert not any(path.exists() for path in steps)
    assert all((runs_dir / "sharer" / path.relative_to(runs_dir / "tiny")).exists() for path in steps)
    found = [check(target) for name in ("tiny", "sharer") for target in find_targets(runs_dir / name)]
    assert all(result.whole for result in found), [result.problem for result in found]
    out, _ = run("run", schedule, "launch.devices=2", "--runs-dir", runs_dir)
    assert "resuming" not in out
    assert final_hashes(runs_dir / "tiny") == before == final_hashes(runs_dir / "sharer")
