"""What real workers record of what they use, on this machine's processors."""

import json

import pytest

from growctl.runs_dir import RunsPaths
from stages.metrics import read_metrics
from tests.growctl.runs import run_here

pytestmark = pytest.mark.trains


def test_workers_say_what_they_use_before_each_line_that_the_ledger_books(two_ranks):
    for _, _, stage in RunsPaths(two_ranks[1]).run("tiny").stages_found():
        records = read_metrics(stage.metrics)
        before = dict(zip((r["event"] for r in records[1:]), records, strict=False))
        assert [records[0]["event"], records[1]["event"]] == ["start", "usage"]
        assert {before[event]["event"] for event in ("train", "checkpoint", "end")} == {"usage"}
        usage = [record for record in records if record["event"] == "usage"]
        assert {(record["gpu_joules"], record["peak_gpu_bytes"]) for record in usage} == {(None, None)}
        peaks = [record["peak_resident_bytes"] for record in usage]
        assert peaks == sorted(peaks)
        assert peaks[0] > 10**7


def test_the_report_has_the_time_of_steps_and_no_invented_figures(two_ranks):
    out = run_here("report", "tiny", "--json", "--runs-dir", two_ranks[1])[0]
    for stage in json.loads(out)["runs"][0]["stages"]:
        spent = stage["spent"]
        assert 0 < spent["step_seconds"] < spent["wall_seconds"]
        assert (stage["mfu"], spent["gpu_joules"], spent["money"]) == (None,) * 3
