"""metrics.jsonl yields only whole records, whatever happened to the writer or the file."""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.metrics import MetricsReader, MetricsWriter, parse_line, read_events, read_metrics

EVENTS: dict[str, dict[str, Any]] = {
    "start": {
        "device": "cpu", "num_devices": 2, "precision": "fp32", "zero_stage": 1, "resumed_from": None,
        "converted": False, "recomputed_step_flops": 0.0, "peak_flops": None, "price_per_device_hour": 2.5,
    },
    "train": {
        "loss": 3.5, "learning_rate": 1e-3, "gradient_norm": 0.5, "tokens_seen": 640, "tokens_per_second": 100.0,
        "data_wait_seconds": 0.25,
    },
    "evaluation": {
        "point": "final", "loss": 2.5, "perplexity": 12.18, "bits_per_byte": 1.2, "num_tokens": 640,
        "by_source": None, "precision": "fp32",
    },
    "anomaly": {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "skip", "first_step": 7, "num_steps": 1},
    "end": {},
    "trigger": {"slope": 1e-9, "threshold": 2e-9, "fired": True},
    "checkpoint": {"path": "step_00000010"},
    "saved": {"path": "step_00000012"},
    "reused": {
        "run": "other", "checkpoint": "runs/other/stages/0-small/final", "device": "cpu", "num_devices": 2,
        "precision": "fp32", "resumed_from": 0, "device_seconds": 12.5,
    },
    "usage": {"gpu_joules": None, "peak_gpu_bytes": None, "peak_resident_bytes": 2**30},
}  # fmt: skip
START, TRAIN, EVALUATION = (EVENTS[event] for event in ("start", "train", "evaluation"))


def written(path: Path) -> list[dict[str, Any]]:
    """Writes a record of each event and returns the records."""
    writer, records = MetricsWriter(path, attempt=1), []
    for step, (event, values) in enumerate(EVENTS.items()):
        writer.write(event, step, 0.5 * step, **values)
        records.append({"event": event, "attempt": 1, "step": step, "seconds": 0.5 * step} | values)
    writer.close()
    return records


def line(event_name: str, **values: Any) -> bytes:
    """A line with a correct CRC, whatever its record contains."""
    record = {"event": event_name, "attempt": 1, "step": 5, "seconds": 2.0} | EVENTS.get(event_name, {}) | values
    return with_crc(json.dumps(record).encode())


def with_crc(text: bytes) -> bytes:
    """The line for a record's JSON."""
    return b'%s, "crc32": "%08x"}\n' % (text[:-1], zlib.crc32(text))


def test_the_records_of_some_events_are_read_without_parsing_the_others(tmp_path, monkeypatch):
    path, parsed = tmp_path / "m", []
    assert read_events(path, "start") == []
    records = written(path)
    with path.open("ab") as file:
        file.write(line("start")[:-5] + b"\n" + line("checkpoint").rstrip())  # a damaged and an unfinished line
    monkeypatch.setattr("stages.metrics.parse_line", lambda text: parsed.append(text) or parse_line(text))
    expected = [record for record in records if record["event"] in ("start", "checkpoint")]
    assert read_events(path, "start", "checkpoint") == expected
    assert len(parsed) == 3


def test_a_reader_yields_each_record_once_and_waits_for_complete_lines(tmp_path):
    path, second = tmp_path / "m", line("end")
    reader = MetricsReader(path)
    assert list(reader) == []
    path.write_bytes(line("end", step=1))
    assert [record["step"] for record in reader] == [1]
    for part, steps in ((second[:20], []), (second[20:], [5])):
        with path.open("ab") as file:
            file.write(part)
        assert [record["step"] for record in reader] == steps
    assert reader.complaint() is None


def test_every_event_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "m"
    records = written(path)
    with path.open("ab") as file:
        file.write(line("train")[:14])
    assert read_metrics(path) == records, "an incomplete line is skipped"
    writer = MetricsWriter(path, attempt=2)  # and the next attempt starts a new one
    writer.write("evaluation", 10, 1.23456, **EVALUATION | {"loss": math.nan, "perplexity": math.inf})
    writer.close()
    [last] = read_metrics(path)[len(records) :]
    of_attempt = {"event": "evaluation", "attempt": 2, "step": 10, "seconds": 1.235}
    assert last == of_attempt | EVALUATION | {"loss": None, "perplexity": None}
    assert '"loss": null, "perplexity": null' in path.read_text(), "which every JSON parser reads"


@pytest.mark.parametrize("event", EVENTS)
def test_a_line_without_one_of_its_keys_is_no_record(event):
    record = parse_line(line(event)) or {}
    for key in record:
        rest = {name: value for name, value in record.items() if name != key}
        assert parse_line(with_crc(json.dumps(rest).encode())) is None, key


@pytest.mark.parametrize(
    ("event", "key", "values"),
    [
        ("train", "loss", ("2", True, [2.0], 10**400)),
        ("train", "step", (-1, 1.0, True, None)),
        ("train", "seconds", (math.nan, math.inf, -0.5, None, "1")),
        ("start", "device", ("\ud800", None)),
        ("start", "num_devices", (0, 1.5, None)),
        ("trigger", "fired", (None, 1)),
        ("end", "event", (["end"], "new")),
        ("end", "another", (1,)),
    ],
)
def test_a_line_with_wrong_values_for_its_event_is_counted_and_skipped(tmp_path, event, key, values):
    path = tmp_path / "m"
    path.write_bytes(line(event) + b"".join(line(event, **{key: value}) for value in values) + line("end"))
    reader = MetricsReader(path)
    assert [record["event"] for record in reader] == [event, "end"]
    assert reader.unreadable == len(values)


def test_lines_that_are_not_records_are_counted_and_skipped(tmp_path):
    path = tmp_path / "m"
    lines = [b"", b"\xff\xfe", b"[1]", b"null", b"[" * 100_000, b"9" * 5000, b'{"event": "end"}', b"\x00" * 20]
    path.write_bytes(b"\n".join(lines) + b"\n" + line("end"))
    reader = MetricsReader(path)
    assert [record["event"] for record in reader] == ["end"]
    assert reader.complaint() == f"{path}: {len(lines)} lines could not be read"


@settings(max_examples=150)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_loses_only_its_line_and_never_changes_a_record(place, bit, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.unlink(missing_ok=True)
    records = written(path)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    found = read_metrics(path)
    assert len(found) >= len(records) - 2  # two lines are lost if the newline between them is
    for record in found:
        [same] = [known for known in records if known["event"] == record["event"]]
        assert record | same == record  # if the bit is in the CRC's key, the record keeps that key
