"""`growctl runs` measures runs by their files, each of which counts once."""

import io

import pytest
from rich.console import Console

from growctl.runs.storage import measure_storage, section
from growctl.text.terminal import print_sections
from model.errors import UserError
from tests.growctl.invented_runs import control, ladder
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
    shared = storage.runs[0].bytes - storage.runs[0].freed_bytes
    assert shared > WEIGHTS
    assert alone == {"sharer": shared, "tiny": shared}
    assert storage.bytes == sum(run.bytes for run in storage.runs) - shared


def test_a_run_with_a_broken_ledger_is_listed_with_a_note(tmp_path):
    made = finished_run(tmp_path)
    (made.directory / "ledger.db").write_bytes(b"damaged")
    [run] = measure_storage(tmp_path).runs
    assert any("ledger.db" in note for note in run.notes)


def test_datasets_are_listed_with_the_runs_that_use_them(tmp_path):
    finished_run(tmp_path)
    dataset(tmp_path, "data")
    dataset(tmp_path, "unused")
    used, unused = measure_storage(tmp_path).datasets
    assert (used.name, used.used_by, unused.name, unused.used_by) == ("data", ["tiny"], "unused", [])
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
    assert lines[0].startswith("  run, its controls")
    assert [line.split()[0] for line in lines[1:3]] == ["quick", "tokenformer-scratch-100"]
    assert lines[2].startswith("    ")


def test_a_runs_directory_that_does_not_exist_is_rejected(tmp_path):
    with pytest.raises(UserError, match="gone is not a directory; give the directory"):
        measure_storage(tmp_path / "gone")


def test_a_run_with_a_broken_manifest_is_listed(tmp_path):
    made = finished_run(tmp_path)
    (save(made, "0-small", "step_00000040", 40) / "manifest.json").write_text("{")
    [run] = measure_storage(tmp_path).runs
    assert run.bytes > 7 * WEIGHTS
