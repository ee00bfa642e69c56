"""The benchmark of following a stage writes a complete results file; its times are not tested."""

import json

from benchmarks import history


def test_a_document_has_every_length_and_compares_the_longest_with_the_shortest(monkeypatch) -> None:
    monkeypatch.setattr(history, "EVENTS", 3)
    document = history.measured([50, 200])
    assert [run["lines"] for run in document["runs"]] == [50, 200]
    assert set(document["growth"]) == {"read_seconds_per_line", "resume_seconds_per_line", "event_seconds"}
    assert document["runs"][1]["file_bytes"] > document["runs"][0]["file_bytes"]
    assert all({"read_seconds", "resume_seconds", "event_seconds"} < set(run) for run in document["runs"])
    json.dumps(document)


def test_growth_is_per_line_and_per_event(monkeypatch) -> None:
    seconds = {"read_seconds": 0.1, "resume_seconds": 0.2, "event_seconds": 0.05}
    runs = iter([{"lines": 100} | seconds, {"lines": 1000} | {name: 10 * value for name, value in seconds.items()}])
    monkeypatch.setattr(history, "one_length", lambda *_: next(runs))
    growth = history.measured([100, 1000])["growth"]
    assert growth == {"read_seconds_per_line": 1.0, "resume_seconds_per_line": 1.0, "event_seconds": 10.0}
