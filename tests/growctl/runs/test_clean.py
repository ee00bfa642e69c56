"""`growctl clean` removes what can be made again, and nothing that a run still needs."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from growctl.ladder.stage_plans import plan_stages
from growctl.ledger.ledger import Ledger
from growctl.runs import clean
from growctl.runs.clean import Cleanup, find_removable, remove
from growctl.runs.directory import own_schedule
from growctl.schedule.start_block import StartBlock, describe_start
from model.errors import UserError
from stages.checkpoint.manifest import Manifest, verify_checkpoint
from stages.data.remote import CACHE_NAME
from stages.data.spec import DataSpec
from tests.growctl.runs import SCHEDULE
from tests.growctl.runs.hand_made import HandMade
from tests.growctl.runs.stored import (
    TRUNK_STEP,
    WEIGHTS,
    dataset,
    finished_run,
    linked_copy,
    names_below,
    save,
    spec_of,
)
from tests.stages.unfinished import left

TRUNK = f"1-large/step_{TRUNK_STEP:08d}"


def listed(cleanup: Cleanup) -> dict[str, str]:
    """Kind by place of what would be removed."""
    return {f"{item.path.parent.name}/{item.path.name}": item.kind for item in cleanup.remove}


def why_kept(cleanup: Cleanup, name: str) -> str:
    [why] = [item.why for item in cleanup.kept if item.path.name == name]
    return why


def bytes_below(directory: Path) -> float:
    """The size of all files below `directory`, each shared among its names."""
    found = [path.stat() for path in directory.rglob("*") if path.is_file()]
    return sum(file.st_size / file.st_nlink for file in found)


def test_checkpoints_inside_finished_stages_are_removed_and_results_and_the_trunk_stay(tmp_path):
    made = finished_run(tmp_path)
    cleanup = find_removable(tmp_path)
    assert listed(cleanup) == {
        "0-small/step_00000020": "checkpoint",
        "0-small/step_00000030": "checkpoint",
        "1-large/step_00000050": "checkpoint",
    }
    assert why_kept(cleanup, f"step_{TRUNK_STEP:08d}").startswith("a finished ladder is extended from it")
    removed = remove(cleanup)
    assert (len(removed.paths), removed.skipped) == (3, [])
    assert names_below(made.directory / "stages") - {"0-small", "1-large"} == {"0-small/final", "1-large/final", TRUNK}
    assert not find_removable(tmp_path).remove


def test_trunk_checkpoints_are_removed_when_asked(tmp_path):
    made = finished_run(tmp_path)
    remove(find_removable(tmp_path, trunks=True))
    assert names_below(made.directory / "stages") - {"0-small", "1-large"} == {"0-small/final", "1-large/final"}


def test_every_checkpoint_may_be_the_trunk_if_the_stage_has_no_spec(tmp_path):
    made = finished_run(tmp_path)
    (made.stage("1-large") / "spec.json").unlink()
    cleanup = find_removable(tmp_path)
    assert [item.path.name for item in cleanup.kept] == [f"step_{TRUNK_STEP:08d}", "step_00000050"]
    assert all("--trunks removes it" in item.why for item in cleanup.kept)


def test_an_unfinished_stage_keeps_its_checkpoints(tmp_path):
    made = finished_run(tmp_path)
    shutil.rmtree(made.stage("1-large") / "final")
    assert set(listed(find_removable(tmp_path, trunks=True))) == {"0-small/step_00000020", "0-small/step_00000030"}


def test_a_stage_with_a_broken_result_keeps_its_checkpoints(tmp_path):
    made = finished_run(tmp_path)
    (made.stage("1-large") / "final" / "weights").write_bytes(b"short")
    cleanup = find_removable(tmp_path)
    assert set(listed(cleanup)) == {"0-small/step_00000020", "0-small/step_00000030"}
    assert "weights has 5 bytes, not 10000" in why_kept(cleanup, "final")


def test_a_flipped_bit_in_a_result_is_found_before_its_checkpoints_are_removed(tmp_path):
    made = finished_run(tmp_path)
    (made.stage("0-small") / "final" / "weights").write_bytes(b"x" * WEIGHTS)
    removed = remove(find_removable(tmp_path))
    assert [path.parent.name for path in removed.paths] == ["1-large"]
    assert {item.path.name for item in removed.skipped} == {"step_00000020", "step_00000030"}
    assert "weights does not have the hash in the manifest" in removed.skipped[0].why
    assert (made.stage("0-small") / "step_00000030").exists()


def test_broken_checkpoints_are_named_and_never_removed(tmp_path):
    made = finished_run(tmp_path)
    (made.stage("0-small") / "step_00000020" / "manifest.json").write_text("{}")
    (made.stage("0-small") / "step_00000030").rename(made.stage("0-small") / "broken-step_00000030")
    (made.stage("1-large") / "step_00000060").symlink_to(made.stage("1-large") / "step_00000050")
    cleanup = find_removable(tmp_path, trunks=True)
    assert set(listed(cleanup)) == {TRUNK, "1-large/step_00000050"}
    assert "manifest.json cannot be read" in why_kept(cleanup, "step_00000020")
    assert "set aside" in why_kept(cleanup, "broken-step_00000030")
    assert "it is a link" in why_kept(cleanup, "step_00000060")


def test_conversions_are_removed_once_their_stage_is_finished(tmp_path):
    made = HandMade(tmp_path)
    (made.directory / ".lock").write_text("")
    save(made, "0-small", "step_00000020", 20)
    save(made, "0-small", "converted_00000020", 20)
    assert listed(find_removable(tmp_path)) == {}
    save(made, "0-small", "final", 30)
    assert listed(find_removable(tmp_path, trunks=True))["0-small/converted_00000020"] == "conversion"


def test_leftovers_of_dead_processes_are_removed(tmp_path):
    made = finished_run(tmp_path)
    names = (".step_00000010.removed", ".step_00000050.incomplete", ".initial.incomplete")
    for name in names:
        (made.stage("1-large") / name).mkdir()
    (tmp_path / ".datasets/.gone-1.incomplete-77-abcd1234").mkdir(parents=True)
    cleanup = find_removable(tmp_path)
    assert {place for place, kind in listed(cleanup).items() if kind == "leftover"} == {
        *(f"1-large/{name}" for name in names),
        ".datasets/.gone-1.incomplete-77-abcd1234",
    }
    remove(cleanup)
    assert not [path for path in tmp_path.rglob(".*") if path.name.endswith((".removed", ".incomplete"))]


def test_what_another_machine_was_writing_is_removed_if_only_the_idle_run_wrote_it(tmp_path):
    stage = finished_run(tmp_path).stage("1-large")
    left(stage / "step_00000050", host="node-9")
    users = left(stage / "final+100", host="node-9")
    dead = left(stage / "final+200")
    cleanup = find_removable(tmp_path)
    assert {place for place, kind in listed(cleanup).items() if kind == "leftover"} == {
        "1-large/.step_00000050.incomplete",
        f"1-large/{dead.name}",
    }
    assert why_kept(cleanup, users.name) == "a growctl is writing it"


def test_a_run_that_another_growctl_holds_is_left_alone(tmp_path):
    made = finished_run(tmp_path)
    with made.hold():
        cleanup = find_removable(tmp_path)
        assert listed(cleanup) == {}
        assert "in use by another growctl" in why_kept(cleanup, "tiny")


def test_a_run_whose_growctl_on_another_machine_recorded_no_exit_is_left_alone(tmp_path):
    made = finished_run(tmp_path)
    (made.directory / ".lock").write_text(
        json.dumps({"process": 12, "host": "node-7", "since": "2026-01-02T03:04:05Z"})
    )
    cleanup = find_removable(tmp_path)
    assert listed(cleanup) == {}
    assert "process 12 on node-7" in why_kept(cleanup, "tiny")


def test_a_run_that_starts_after_the_listing_is_left_alone(tmp_path):
    made = finished_run(tmp_path)
    cleanup = find_removable(tmp_path)
    with made.hold():
        removed = remove(cleanup)
    assert (removed.paths, len(removed.skipped), removed.freed_bytes) == ([], 3, 0)
    assert "in use by another growctl" in removed.skipped[0].why


def test_removing_takes_the_lock_of_the_run(tmp_path, monkeypatch):
    """A growctl may start between the last look and the removal."""
    made = finished_run(tmp_path)
    cleanup = find_removable(tmp_path)
    monkeypatch.setattr(clean, "why_in_use", lambda directory: None)
    with made.hold():
        removed = remove(cleanup)
    assert (removed.paths, len(removed.skipped)) == ([], 3)


def test_the_checkpoints_inside_a_finished_release_are_removed(tmp_path):
    made = finished_run(tmp_path)
    save(made, "0-small/release", "step_00000005", 5)
    assert "release/step_00000005" not in listed(find_removable(tmp_path, trunks=True))
    save(made, "0-small/release", "final", 9)
    (made.stage("0-small") / "release/spec.json").write_text(spec_of(made, 0).model_dump_json())
    [item] = [item for item in find_removable(tmp_path).remove if "release" in str(item.path)]
    assert (item.path.name, item.stage, item.kind) == ("step_00000005", "0-small/release", "checkpoint")
    removed = remove(find_removable(tmp_path))
    assert item.path in removed.paths
    assert (made.stage("0-small") / "release/final").exists()


def test_datasets_stay_if_other_runs_directories_may_use_them(tmp_path):
    dataset(tmp_path / "a", "unused")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/.datasets").symlink_to(tmp_path / "a/.datasets")
    assert not find_removable(tmp_path / "b").remove
    assert find_removable(tmp_path / "a").remove


def test_what_has_changed_since_the_listing_is_left_alone(tmp_path):
    made = finished_run(tmp_path)
    cleanup = find_removable(tmp_path)
    (made.stage("0-small") / "step_00000020" / "weights").unlink()
    removed = remove(cleanup)
    assert [(item.path.name, item.why) for item in removed.skipped] == [
        ("step_00000020", "it has changed since it was listed")
    ]


def test_checkpoints_stay_while_a_running_growctl_may_reuse_them(tmp_path):
    finished_run(tmp_path)
    with finished_run(tmp_path, "other").hold():
        cleanup = find_removable(tmp_path)
        assert listed(cleanup) == {}
        assert why_kept(cleanup, "step_00000020") == "other is running and may reuse it"
    assert "0-small/step_00000020" in listed(find_removable(tmp_path, ["tiny"]))


def test_a_checkpoint_stays_that_another_run_starts_from(tmp_path):
    made = finished_run(tmp_path)
    model = plan_stages(own_schedule(made.directory / "schedule.yaml"))[0].model
    checkpoint = save(made, "0-small", "step_00000025", 25, model=model)
    base = describe_start(StartBlock(checkpoint=str(checkpoint)), tmp_path).model_dump(mode="json")
    start = json.dumps({"checkpoint": str(checkpoint), "base": base})
    (tmp_path / "started").mkdir()
    schedule = tmp_path / "started/schedule.yaml"
    schedule.write_text(f"name: started\n{SCHEDULE}start: {start}\n")
    cleanup = find_removable(tmp_path)
    assert "0-small/step_00000030" in listed(cleanup)
    assert why_kept(cleanup, "step_00000025") == "started starts from it"
    schedule.write_text(f"name: started\n{SCHEDULE}start: null\n")
    assert "0-small/step_00000025" in listed(find_removable(tmp_path))
    schedule.write_text(f"name: started\n{SCHEDULE}start: {{}}\n")
    assert "started may need it: " in why_kept(find_removable(tmp_path), "step_00000025")


def test_removing_from_one_run_leaves_a_run_that_shares_its_files_intact(tmp_path):
    made, sharer = finished_run(tmp_path), finished_run(tmp_path, "sharer")
    shared = [
        linked_copy(made.stage("0-small") / name, sharer.stage("0-small") / f"shared-{name}")
        for name in ("step_00000020", "step_00000030", "final")
    ]
    cleanup = find_removable(tmp_path, ["tiny"])
    removed = remove(cleanup)
    assert len(removed.paths) == 3
    assert WEIGHTS < removed.freed_bytes == cleanup.freed_bytes < 2 * WEIGHTS  # two of the three are shared
    for checkpoint in shared:
        verify_checkpoint(checkpoint)


def test_removing_all_names_of_a_file_frees_it_once(tmp_path):
    made, sharer = finished_run(tmp_path), finished_run(tmp_path, "sharer")
    shutil.rmtree(sharer.stage("0-small") / "step_00000020")
    linked_copy(made.stage("0-small") / "step_00000020", sharer.stage("0-small") / "step_00000020")
    before = bytes_below(tmp_path)
    removed = remove(find_removable(tmp_path))
    assert (len(removed.paths), removed.freed_bytes) == (6, before - bytes_below(tmp_path))


def test_what_a_kill_leaves_is_hidden_and_removed_the_next_time(tmp_path, monkeypatch):
    made = finished_run(tmp_path)

    def killed(path: Path) -> None:
        (path / "weights").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(clean.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(find_removable(tmp_path))
    assert [path.name for path in sorted(made.stage("0-small").iterdir()) if path.is_dir()] == [
        ".step_00000020.removed",
        "final",
        "step_00000030",
    ]
    remove(find_removable(tmp_path))
    assert not list(tmp_path.rglob("*.removed"))


def test_datasets_that_no_run_uses_are_removed(tmp_path):
    made = finished_run(tmp_path)
    for name in ("data", "spec-only", "unused"):
        dataset(tmp_path, name)
    (tmp_path / ".datasets" / CACHE_NAME).mkdir()
    spec = made.stage("1-large") / "spec.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"dataset": "/elsewhere/.datasets/spec-only"}))
    cleanup = find_removable(tmp_path)
    assert listed(cleanup)[".datasets/unused"] == "dataset"
    assert [item.path.name for item in cleanup.remove if item.kind == "dataset"] == ["unused"]
    remove(cleanup)
    left = [path.name for path in (tmp_path / ".datasets").iterdir() if path.is_dir()]
    assert sorted(left) == [CACHE_NAME, "data", "spec-only"]


def test_cleaning_named_runs_leaves_datasets_alone(tmp_path):
    finished_run(tmp_path)
    dataset(tmp_path, "unused")
    assert {item.kind for item in find_removable(tmp_path, ["tiny"]).remove} == {"checkpoint"}


def test_a_dataset_that_a_process_is_preparing_stays(tmp_path):
    dataset(tmp_path, "unused")
    (tmp_path / ".datasets/.unused.incomplete-77-abcd1234").mkdir()
    unlocked = find_removable(tmp_path)
    with (tmp_path / ".datasets/.unused.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        locked = find_removable(tmp_path)
        removed = remove(unlocked)
    assert len(unlocked.remove) == 2
    assert not locked.remove
    assert "is preparing this dataset" in locked.kept[0].why
    assert (removed.paths, len(removed.skipped)) == ([], 2)


def test_a_dataset_that_a_run_has_begun_to_use_since_the_listing_stays(tmp_path):
    dataset(tmp_path, "data")
    cleanup = find_removable(tmp_path)
    finished_run(tmp_path)
    removed = remove(cleanup)
    assert [item.why for item in removed.skipped] == ["a run has started to use it since it was listed"]
    assert (tmp_path / ".datasets/data").exists()


def test_the_dataset_of_a_run_that_has_not_begun_stays(tmp_path):
    (tmp_path / "queued").mkdir()
    (tmp_path / "queued/schedule.yaml").write_text(f"name: queued\n{SCHEDULE}")
    data = own_schedule(tmp_path / "queued/schedule.yaml").data
    dataset(tmp_path, "wanted", DataSpec(**data.model_dump(include=set(DataSpec.model_fields))))
    dataset(tmp_path, "unused")
    assert [item.path.name for item in find_removable(tmp_path).remove] == ["unused"]


def test_all_datasets_stay_if_a_run_no_longer_says_which_it_uses(tmp_path):
    made = finished_run(tmp_path)
    dataset(tmp_path, "unused")
    (made.directory / "ledger.db").write_bytes(b"damaged")
    for stage in ("0-small", "1-large"):
        (made.stage(stage) / "spec.json").unlink()
    assert "tiny may use it" in why_kept(find_removable(tmp_path), "unused")


def test_a_broken_dataset_is_named_and_never_removed(tmp_path):
    (dataset(tmp_path, "unused") / "manifest.json").write_text("{")
    cleanup = find_removable(tmp_path)
    assert not cleanup.remove
    assert "cannot be read" in why_kept(cleanup, "unused")


@pytest.mark.parametrize(
    ("names", "message"), [(["tinny"], "no run 'tinny' in {}; the nearest is tiny"), (["x"], "no run 'x' in {}")]
)
def test_an_unknown_run_is_rejected_with_the_nearest_names(tmp_path, names, message):
    finished_run(tmp_path)
    with pytest.raises(UserError, match=message.format(tmp_path)):
        find_removable(tmp_path, names)


def test_the_ledger_of_a_cleaned_run_stays_readable(tmp_path):
    made = finished_run(tmp_path)
    before = {path: path.read_bytes() for path in made.directory.iterdir() if path.is_file()}
    remove(find_removable(tmp_path))
    assert {path: path.read_bytes() for path in made.directory.iterdir() if path.is_file()} == before
    with Ledger(made.directory / "ledger.db", read_only=True) as ledger:
        assert ledger.run().name == "tiny"


def test_cleaning_reads_no_file_twice(tmp_path, monkeypatch):
    """Each result is hashed once, however many checkpoints it makes superfluous."""
    finished_run(tmp_path)
    cleanup, checked = find_removable(tmp_path), []

    def verified(path: Path, hashes: bool = True) -> Manifest:
        checked.extend([path] if hashes else [])
        return verify_checkpoint(path, hashes=hashes)

    monkeypatch.setattr(clean, "verify_checkpoint", verified)
    remove(cleanup)
    assert [os.path.relpath(path, tmp_path) for path in checked] == [
        "tiny/stages/0-small/final",
        "tiny/stages/1-large/final",
    ]
