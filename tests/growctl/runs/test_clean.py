"""`growctl clean` removes what can be made again, and nothing that a run still needs."""

import fcntl
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from growctl.ladder.stage_plans import plan_stages
from growctl.runs import clean
from growctl.runs.clean import Cleanup, find_removable, remove
from growctl.runs.directory import own_schedule
from growctl.schedule.start_block import StartBlock, describe_start
from stages.checkpoint.manifest import verify_checkpoint
from stages.data.remote import CACHE_NAME
from stages.data.spec import DataSpec
from tests.growctl.runs import SCHEDULE
from tests.growctl.runs.hand_made import HandMade
from tests.growctl.runs.stored import WEIGHTS, change, dataset, finished_run, linked_copy, names_below, save, spec_of
from tests.stages.unfinished import left

SMALL_20, SMALL_30 = "0-small/step_00000020", "0-small/step_00000030"
TRUNK, LARGE_50 = "1-large/step_00000043", "1-large/step_00000050"
FINALS = {"0-small/final", "1-large/final"}
IN_USE_ELSEWHERE = '{"process": 12, "host": "node-7", "since": "2026-01-02T03:04:05Z"}'


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """The finished run `tiny`."""
    return finished_run(tmp_path)


def listed(cleanup: Cleanup) -> dict[str, str]:
    """Kind by place of what would be removed."""
    return {f"{item.path.parent.name}/{item.path.name}": item.kind for item in cleanup.remove}


def why_kept(cleanup: Cleanup, name: str) -> str:
    [why] = [item.why for item in cleanup.kept if item.path.name == name]
    return why


def test_checkpoints_inside_finished_stages_are_removed_and_the_trunk_when_asked(tmp_path, made, monkeypatch):
    stages = made.directory / "stages"
    before = {path: path.read_bytes() for path in made.directory.iterdir() if path.is_file()}
    verify = Mock(wraps=verify_checkpoint)
    monkeypatch.setattr(clean, "verify_checkpoint", verify)
    assert listed(find_removable(tmp_path)) == dict.fromkeys((SMALL_20, SMALL_30, LARGE_50), "checkpoint")
    removed = remove(find_removable(tmp_path))
    assert (len(removed.paths), removed.skipped) == (3, [])
    assert names_below(stages) - {"0-small", "1-large"} == {*FINALS, TRUNK}
    read = [call.args[0] for call in verify.mock_calls if not call.kwargs]
    assert sorted(read) == [stages / name for name in sorted(FINALS)], "each result once, for all its checkpoints"

    assert listed(find_removable(tmp_path)) == {}
    assert listed(find_removable(tmp_path, trunks=True)) == {TRUNK: "trunk"}
    remove(find_removable(tmp_path, trunks=True))
    assert names_below(stages) - {"0-small", "1-large"} == FINALS
    assert {path: path.read_bytes() for path in made.directory.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("path", "content", "removable", "kept", "why"),
    [
        ("stages/1-large/spec.json", None, {SMALL_20, SMALL_30}, "step_00000050", "--trunks removes it"),
        ("stages/1-large/final", None, {SMALL_20, SMALL_30}, None, ""),
        ("stages/1-large/final/weights", "short", {SMALL_20, SMALL_30}, "final", "weights has 5 bytes, not 10000"),
        (f"stages/{SMALL_20}/manifest.json", "{}", {SMALL_30, LARGE_50}, "step_00000020", "cannot be read"),
        (".lock", IN_USE_ELSEWHERE, set(), "tiny", "process 12 on node-7"),
    ],
)
def test_what_a_run_still_needs_or_what_is_damaged_stays(tmp_path, made, path, content, removable, kept, why):
    change(made.directory / path, content)
    cleanup = find_removable(tmp_path)
    assert set(listed(cleanup)) == removable
    assert kept is None or why in why_kept(cleanup, kept)


def test_links_and_what_was_set_aside_are_named_and_never_removed(tmp_path, made):
    (made.directory / "stages" / SMALL_30).rename(made.stage("0-small") / "broken-step_00000030")
    (made.stage("1-large") / "step_00000060").symlink_to(made.directory / "stages" / LARGE_50)
    cleanup = find_removable(tmp_path, trunks=True)
    assert set(listed(cleanup)) == {SMALL_20, TRUNK, LARGE_50}
    assert "set aside" in why_kept(cleanup, "broken-step_00000030")
    assert "it is a link" in why_kept(cleanup, "step_00000060")


def test_conversions_and_checkpoints_inside_a_release_are_removed_once_that_is_finished(tmp_path, made):
    shutil.rmtree(made.stage("0-small") / "final")
    save(made, "0-small", "converted_00000020", 20)
    save(made, "0-small/release", "step_00000005", 5)
    assert set(listed(find_removable(tmp_path, trunks=True))) == {TRUNK, LARGE_50}
    save(made, "0-small", "final", 30)
    save(made, "0-small/release", "final", 9)
    (made.stage("0-small") / "release/spec.json").write_text(spec_of(made, 0).model_dump_json())
    cleanup = find_removable(tmp_path)
    assert {(item.stage, item.path.name): item.kind for item in cleanup.remove if item.path.name[-1] != "0"} == {
        ("0-small/release", "step_00000005"): "checkpoint"
    }
    assert listed(cleanup)["0-small/converted_00000020"] == "conversion"
    assert len(remove(cleanup).paths) == 5
    assert names_below(made.stage("0-small")) == {".", "final", "release", "release/final"}


def test_leftovers_of_dead_processes_are_removed(tmp_path, made):
    """Also those of another machine, where only the run itself writes such files and the run is idle."""
    stage = made.stage("1-large")
    for name in (".step_00000010.removed", ".initial.incomplete"):
        (stage / name).mkdir()
    elsewhere = left(stage / "step_00000050", host="node-9")
    users, dead = left(stage / "final+100", host="node-9"), left(stage / "final+200")
    (tmp_path / ".datasets/.gone-1.incomplete-77-abcd1234").mkdir(parents=True)
    cleanup = find_removable(tmp_path)
    leftovers = {place for place, kind in listed(cleanup).items() if kind == "leftover"}
    names = (".step_00000010.removed", ".initial.incomplete", elsewhere.name, dead.name)
    assert leftovers == {*(f"1-large/{name}" for name in names), ".datasets/.gone-1.incomplete-77-abcd1234"}
    assert why_kept(cleanup, users.name) == "a growctl is writing it"
    remove(cleanup)
    assert [path for path in tmp_path.rglob(".*") if path.suffix in (".removed", ".incomplete")] == [users]


@pytest.mark.parametrize(
    ("path", "content", "skipped", "why"),
    [
        ("0-small/final/weights", "x" * WEIGHTS, {SMALL_20, SMALL_30}, "weights does not have the hash"),
        (f"{SMALL_20}/weights", None, {SMALL_20}, "it has changed since it was listed"),
    ],
    ids=["result", "checkpoint"],
)
def test_what_has_changed_since_the_listing_is_left_alone(tmp_path, made, path, content, skipped, why):
    cleanup = find_removable(tmp_path)
    change(made.directory / "stages" / path, content)
    removed = remove(cleanup)
    assert {f"{item.path.parent.name}/{item.path.name}" for item in removed.skipped} == skipped
    assert all(item.path.exists() and why in item.why for item in removed.skipped)
    assert len(removed.paths) == 3 - len(skipped)


def test_a_run_that_another_growctl_holds_is_left_alone(tmp_path, made, monkeypatch):
    """Also if that starts after the listing, or between the last look and the removal."""
    cleanup = find_removable(tmp_path)
    with made.hold():
        held = find_removable(tmp_path)
        assert listed(held) == {}
        assert "in use by another growctl" in why_kept(held, "tiny")
        for look in (clean.why_in_use, lambda _: None):
            monkeypatch.setattr(clean, "why_in_use", look)
            removed = remove(cleanup)
            assert (removed.paths, len(removed.skipped), removed.freed_bytes) == ([], 3, 0)
            assert "in use by another growctl" in removed.skipped[0].why


def test_checkpoints_stay_while_a_running_growctl_may_reuse_them(tmp_path, made):
    with finished_run(tmp_path, "other").hold():
        cleanup = find_removable(tmp_path)
        assert listed(cleanup) == {}
        assert why_kept(cleanup, "step_00000020") == "other is running and may reuse it"
    assert SMALL_20 in listed(find_removable(tmp_path, ["tiny"]))


def test_a_checkpoint_stays_that_another_run_starts_from(tmp_path, made):
    model = plan_stages(own_schedule(made.directory / "schedule.yaml"))[0].model
    checkpoint = save(made, "0-small", "step_00000025", 25, model=model)
    base = describe_start(StartBlock(checkpoint=str(checkpoint)), tmp_path).model_dump(mode="json")
    (tmp_path / "started").mkdir()

    def with_start(start: object) -> Cleanup:
        (tmp_path / "started/schedule.yaml").write_text(f"name: started\n{SCHEDULE}start: {json.dumps(start)}\n")
        return find_removable(tmp_path)

    started = with_start({"checkpoint": str(checkpoint), "base": base})
    assert SMALL_30 in listed(started)
    assert why_kept(started, "step_00000025") == "started starts from it"
    assert "0-small/step_00000025" in listed(with_start(None))
    assert "started may need it: " in why_kept(with_start({}), "step_00000025")


def test_files_that_runs_share_stay_whole_and_are_freed_with_their_last_name(tmp_path, made):
    sharer = finished_run(tmp_path, "sharer")
    names = ("step_00000020", "step_00000030", "final")
    shared = [linked_copy(made.stage("0-small") / name, sharer.stage("0-small") / f"own-{name}") for name in names]
    cleanup = find_removable(tmp_path, ["tiny"])
    removed = remove(cleanup)
    assert len(removed.paths) == 3
    assert WEIGHTS < removed.freed_bytes == cleanup.freed_bytes < 2 * WEIGHTS  # two of the three are shared
    for checkpoint in shared:
        verify_checkpoint(checkpoint)


def test_what_a_kill_leaves_is_hidden_and_removed_the_next_time(tmp_path, made, monkeypatch):
    def killed(path: Path) -> None:
        (path / "weights").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(clean.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(find_removable(tmp_path))
    folders = sorted(path.name for path in made.stage("0-small").iterdir() if path.is_dir())
    assert folders == [".step_00000020.removed", "final", "step_00000030"]
    remove(find_removable(tmp_path))
    assert not list(tmp_path.rglob("*.removed"))


def test_datasets_that_no_run_uses_are_removed(tmp_path, made):
    """A run names its dataset in its ledger, in its workers' spec or, before it has begun, in its schedule."""
    (tmp_path / "queued").mkdir()
    (tmp_path / "queued/schedule.yaml").write_text(f"name: queued\n{SCHEDULE}")
    data = own_schedule(tmp_path / "queued/schedule.yaml").data
    for name in ("data", "spec-only", "unused", "damaged"):
        dataset(tmp_path, name)
    dataset(tmp_path, "wanted", DataSpec(**data.model_dump(include=set(DataSpec.model_fields))))
    (tmp_path / ".datasets/damaged/manifest.json").write_text("{")
    (tmp_path / ".datasets" / CACHE_NAME).mkdir()
    spec = made.stage("1-large") / "spec.json"
    spec.write_text(json.dumps(json.loads(spec.read_text()) | {"dataset": "/elsewhere/.datasets/spec-only"}))
    assert {item.kind for item in find_removable(tmp_path, ["tiny"]).remove} == {"checkpoint"}
    cleanup = find_removable(tmp_path)
    assert [item.path.name for item in cleanup.remove if item.kind == "dataset"] == ["unused"]
    assert "cannot be read" in why_kept(cleanup, "damaged")
    remove(cleanup)
    stay = sorted(path.name for path in (tmp_path / ".datasets").iterdir() if path.is_dir())
    assert stay == [CACHE_NAME, "damaged", "data", "spec-only", "wanted"]


def test_datasets_stay_if_another_runs_directory_or_a_damaged_run_may_use_them(tmp_path):
    dataset(tmp_path / "a", "unused")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/.datasets").symlink_to(tmp_path / "a/.datasets")
    assert not find_removable(tmp_path / "b").remove
    assert find_removable(tmp_path / "a").remove
    made = finished_run(tmp_path / "a")
    (made.directory / "ledger.db").write_bytes(b"damaged")
    for stage in ("0-small", "1-large"):
        (made.stage(stage) / "spec.json").unlink()
    assert "tiny may use it" in why_kept(find_removable(tmp_path / "a"), "unused")


def test_a_dataset_that_a_process_is_preparing_or_a_run_has_begun_to_use_stays(tmp_path):
    dataset(tmp_path, "data")
    (tmp_path / ".datasets/.data.incomplete-77-abcd1234").mkdir()
    unlocked = find_removable(tmp_path)
    assert len(unlocked.remove) == 2
    with (tmp_path / ".datasets/.data.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        locked, removed = find_removable(tmp_path), remove(unlocked)
    assert not locked.remove
    assert "is preparing this dataset" in locked.kept[0].why
    assert (removed.paths, len(removed.skipped)) == ([], 2)
    finished_run(tmp_path)
    assert [item.why for item in remove(unlocked).skipped] == ["a run has started to use it since it was listed"]
    assert (tmp_path / ".datasets/data").exists()
