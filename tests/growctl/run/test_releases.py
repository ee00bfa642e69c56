"""A run that releases a finished model of its first size: files, data, cost, and a trunk that does not notice."""

from pathlib import Path

import pytest

from growctl.ladder.load import load_schedule
from growctl.launch.machines import Devices
from growctl.ledger.ledger import Ledger
from growctl.run.requests import RunRequest, left_to_train, remaining_bytes
from growctl.runs.status import find_status
from growctl.runs.verify import find_targets
from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import manifest_hash, read_manifest
from stages.metrics import read_metrics
from stages.stage_dir import StagePaths
from tests.growctl.runs import SCHEDULE, final_hashes, run, run_here, write_schedule
from tests.growctl.runs.hand_made import stages_of

SHORT = (
    SCHEDULE.replace("train_steps: 30", "train_steps: 12, release: {decay: 0.5}")
    .replace("train_steps: 60", "train_steps: 10")
    .replace("every: 10, keep", "every: 4, keep")
)
CPU = Devices(1, "cpu", False)
STAGES = ["small", "small/release", "large"]

pytestmark = pytest.mark.trains


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(runs directory, output) of a ladder with a release, and of the same ladder without it, called plain."""
    folder = tmp_path_factory.mktemp("released")
    schedule = write_schedule(folder, SHORT)
    out, _ = run("run", schedule, "--runs-dir", folder / "runs")
    without = ("stages.0.release=false", "--name", "plain", "--no-reuse")
    run("run", schedule, *without, "--runs-dir", folder / "runs")
    return folder / "runs", out


def test_a_release_is_trained_right_after_its_stage_and_named_as_a_finished_model(released: tuple[Path, str]) -> None:
    _, out = released
    started = [line.split(" ", 1)[1].split(":")[0] for line in out.splitlines() if " parameters in " in line]
    assert started == [f"stage {name}" for name in STAGES]
    assert "released small, a finished model: " in out


def test_the_ladder_ends_in_the_same_bits_with_and_without_a_release(released: tuple[Path, str]) -> None:
    runs, _ = released
    hashes = {name: sha256 for name, sha256 in final_hashes(runs / "tiny").items() if "/release/" not in name}
    assert hashes == final_hashes(runs / "plain")


def test_a_release_starts_from_its_stages_end_and_both_it_and_the_next_stage_read_on(
    released: tuple[Path, str],
) -> None:
    runs, _ = released
    stage = StagePaths(runs / "tiny/stages/0-small")
    end, release = read_manifest(stage.final), read_manifest(stage.release.final)
    assert release.lineage.parent == manifest_hash(stage.final)
    assert release.lineage.history[:-1] == end.lineage.history
    assert (end.samples_seen, release.samples_seen) == (12 * 8, (12 + 6) * 8)
    assert read_manifest(stage.directory.with_name("1-large") / "final").samples_seen == (12 + 10) * 8
    assert release.group_steps == {"generation-0-decay": 18, "generation-0-no-decay": 18}
    assert (release.model, release.step) == (end.model, 6)
    before = next(r for r in read_metrics(stage.metrics) if r.get("point") == "final")
    records = read_metrics(stage.release.metrics)
    points = {record["point"]: record["loss"] for record in records if record["event"] == "evaluation"}
    assert set(points) == {"start", "final"}
    assert points["start"] == pytest.approx(before["loss"], abs=EXACT_GROWTH)
    rates = [record["learning_rate"] for record in records if record["event"] == "train"]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(5e-3 / 6)


def test_the_cost_of_a_release_is_its_runs_but_no_later_stages(released: tuple[Path, str]) -> None:
    with Ledger(released[0] / "tiny/ledger.db", read_only=True) as ledger:
        found = [(s.name, s.branch_of, s.decayed, ledger.stage_cost(s.name).model.steps) for s in ledger.stages()]
    assert sorted(found) == [("large", None, True, 10), ("small", None, False, 12), ("small/release", "small", True, 6)]


def test_status_verify_and_dry_run_know_the_release(released: tuple[Path, str]) -> None:
    runs, _ = released
    [tiny] = find_status(runs, ["tiny"])
    assert stages_of(tiny) == ["small done 12/12", "small/release done 6/6", "large done 10/10"]
    assert tiny.state == "finished"
    out, _ = run_here("run", runs.parent / "tiny.yaml", "--dry-run", "--runs-dir", runs)
    assert "## stage small/release: done" in out
    paths = {target.path for target in find_targets(runs / "tiny")}
    assert runs / "tiny/stages/0-small/release/final" in paths


def test_a_release_that_is_missing_is_all_that_is_left_to_train(released: tuple[Path, str], tmp_path: Path) -> None:
    runs, _ = released
    copy = tmp_path / "tiny"
    for name in ("0-small", "1-large"):
        (copy / "stages" / name).mkdir(parents=True)
        (copy / "stages" / name / "final").symlink_to(runs / "tiny/stages" / name / "final")
    schedule = load_schedule(str(runs.parent / "tiny.yaml"))
    assert [plan.name for plan in left_to_train(schedule, copy)] == ["small/release"]
    assert remaining_bytes(RunRequest("tiny", schedule, "tiny"), copy, CPU) > 0
    assert remaining_bytes(RunRequest("tiny", schedule, "tiny"), runs / "tiny", CPU) == 0


def test_a_release_of_another_run_is_reused(released: tuple[Path, str]) -> None:
    runs, _ = released
    out, _ = run("run", runs.parent / "tiny.yaml", "--name", "again", "--runs-dir", runs)
    assert f"stage small/release: reused whole from {runs}/tiny/stages/0-small/release/final" in out
    assert final_hashes(runs / "again") == final_hashes(runs / "tiny")
