"""`growctl runs` measures runs by their files, each of which counts once."""

import io
import os

import pytest
from rich.console import Console

from growctl.ledger.ledger import Ledger
from growctl.runs.storage import Share, measure_storage, section
from growctl.text.terminal import print_sections
from model.errors import UserError
from tests.growctl.invented_runs import FakeRun, control, ladder
from tests.growctl.runs.stored import WEIGHTS, dataset, finished_run, linked_copy, save


def printed(storage) -> str:
    out = io.StringIO()
    print_sections([section(storage)], Console(file=out, width=80, highlight=False))
    return out.getvalue()


def test_a_file_with_several_names_in_a_run_counts_once(tmp_path):
    made = finished_run(tmp_path)
    [before] = measure_storage(tmp_path).runs
    linked_copy(made.stage("0-small") / "final", made.stage("1-large") / "initial")
    [after] = measure_storage(tmp_path).runs
    assert before.bytes == after.bytes == after.freed_bytes
    assert before.bytes > 6 * WEIGHTS


def test_removing_a_run_frees_only_what_no_other_run_shares(tmp_path):
    made, sharer = finished_run(tmp_path), finished_run(tmp_path, "sharer")
    linked_copy(made.stage("0-small") / "final", sharer.stage("0-small") / "reused")
    storage = measure_storage(tmp_path)
    alone = {run.name: run.bytes - run.freed_bytes for run in storage.runs}
    [share] = storage.shares
    assert (share.runs, share.elsewhere, share.num_files) == (("sharer", "tiny"), False, 2)
    assert alone == {"sharer": share.bytes, "tiny": share.bytes}
    assert storage.bytes == sum(run.bytes for run in storage.runs) - share.bytes
    assert f"sharer and tiny share 2 files, {share.bytes / 1000:.1f} kB" in printed(storage)


def test_files_that_are_shared_with_places_outside_the_runs_are_named(tmp_path):
    made = finished_run(tmp_path / "runs")
    os.link(made.stage("0-small") / "final" / "weights", tmp_path / "mine")
    storage = measure_storage(tmp_path / "runs")
    assert storage.shares == (Share(("tiny",), elsewhere=True, num_files=1, bytes=WEIGHTS),)
    assert storage.runs[0].bytes - storage.runs[0].freed_bytes == WEIGHTS
    assert "tiny and places outside these runs share 1 file, 10 kB" in printed(storage)


def test_the_cost_of_a_run_includes_repeated_work(tmp_path):
    plain = ladder(tmp_path / "a")
    killed = ladder(tmp_path / "b", killed_at=300)
    stages = {stage.name: stage.step_flops.total for stage in plain.stages}
    [cheap], [dear] = measure_storage(tmp_path / "a").runs, measure_storage(tmp_path / "b").runs
    assert cheap.flops == pytest.approx(sum(flops * n for flops, n in zip(stages.values(), (1000, 600), strict=True)))
    assert cheap.flops
    assert dear.flops == pytest.approx(cheap.flops + 300 * killed.stages[1].step_flops.total)
    assert cheap.device_seconds


def test_reused_work_is_shown_apart_from_what_the_run_spent(tmp_path):
    paid = ladder(tmp_path, name="first")
    reuser = FakeRun(tmp_path, "second", paid.stages)
    taken = {"event": "reused", "attempt": 1, "step": 400, "seconds": 0.0, "run": "first", "checkpoint": "first/c"}
    where = {"device": "cpu", "num_devices": 2, "precision": "bf16", "resumed_from": 0, "device_seconds": 7.0}
    with Ledger.open(reuser.path) as ledger:
        ledger.books(paid.stages[0].name).sync([taken | where], attempt_over=True)
    first, second = measure_storage(tmp_path).runs
    assert (first.reused_flops, second.flops) == (0.0, 0.0)
    assert second.reused_flops == pytest.approx(400 * paid.stages[0].step_flops.total)
    assert "taken over from other runs" in " ".join(printed(measure_storage(tmp_path)).split())
    assert "taken over from other runs" not in printed(measure_storage(tmp_path, ["first"]))


def test_a_run_without_a_readable_ledger_has_no_cost_and_a_note(tmp_path):
    made = finished_run(tmp_path)
    (made.directory / "ledger.db").write_bytes(b"damaged")
    [run] = measure_storage(tmp_path).runs
    assert (run.flops, run.device_seconds) == (None, None)
    assert any("ledger.db" in note for note in run.notes)


def test_datasets_are_listed_with_the_runs_that_use_them(tmp_path):
    finished_run(tmp_path)
    dataset(tmp_path, "data")
    dataset(tmp_path, "unused")
    used, unused = measure_storage(tmp_path).datasets
    assert (used.name, used.used_by, unused.name, unused.used_by) == ("data", ("tiny",), "unused", ())
    assert not measure_storage(tmp_path, ["tiny"]).datasets


def test_long_run_names_break_at_hyphens_below_their_indent(tmp_path):
    ladder(tmp_path)
    kind = "scratch-of-each-size-with-quite-a-long-name"
    control(tmp_path, 1000, 1.5, kind=kind)
    lines = printed(measure_storage(tmp_path)).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    scratch-"))
    parts = [line.split()[0] for line in lines[first : first + 2]]
    assert "".join(parts) == f"{kind}-1000"
    assert parts[0].endswith("-")
    assert lines[first + 1].startswith("    ")


def test_the_table_lists_controls_below_their_ladder_in_80_columns(tmp_path):
    ladder(tmp_path)
    control(tmp_path, 100, 1.5)
    control(tmp_path, 1000, 1.5, kind="transformer-scratch-with-a-very-long-name")
    out = printed(measure_storage(tmp_path))
    lines = [line.rstrip() for line in out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("  run, its controls")
    assert [line.split()[0] for line in lines[2:4]] == ["quick", "tokenformer-scratch-100"]
    assert lines[3].startswith("    ")


def test_a_runs_directory_that_does_not_exist_is_rejected(tmp_path):
    with pytest.raises(UserError, match="gone does not exist; give the directory"):
        measure_storage(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is not a directory"):
        measure_storage(tmp_path / "file")


def test_a_run_with_a_broken_manifest_is_listed(tmp_path):
    made = finished_run(tmp_path)
    (save(made, "0-small", "step_00000040", 40) / "manifest.json").write_text("{")
    [run] = measure_storage(tmp_path).runs
    assert run.bytes > 7 * WEIGHTS
