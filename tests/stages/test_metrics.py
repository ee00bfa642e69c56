"""metrics.jsonl: whole lines only, whatever happened to the writer."""

from stages.metrics import MetricsReader, MetricsWriter, read_metrics


def test_records_come_back_in_order_with_attempt_step_and_seconds(tmp_path):
    writer = MetricsWriter(tmp_path / "m", attempt=2)
    writer.write("train", 10, 1.23456, loss=3.5)
    writer.write("end", 20, 2.0)
    writer.close()
    assert read_metrics(tmp_path / "m") == [
        {"event": "train", "attempt": 2, "step": 10, "seconds": 1.235, "loss": 3.5},
        {"event": "end", "attempt": 2, "step": 20, "seconds": 2.0},
    ]


def test_a_line_cut_short_by_a_death_is_passed_over_and_the_next_attempt_starts_a_new_one(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b'{"event": "train", "attempt": 1, "step": 1, "seconds": 0.1}\n{"event": "tra')
    assert [r["step"] for r in read_metrics(path)] == [1]
    MetricsWriter(path, attempt=2).write("start", 0, 0.0)
    assert [r["attempt"] for r in read_metrics(path)] == [1, 2]


def test_a_reader_gives_each_record_once_and_waits_for_the_end_of_a_line(tmp_path):
    path = tmp_path / "m"
    reader = MetricsReader(path)
    assert list(reader) == []
    writer = MetricsWriter(path, attempt=1)
    writer.write("train", 1, 0.1)
    assert [r["step"] for r in reader] == [1]
    with path.open("a") as file:
        file.write('{"event": "train", "attempt": 1, "st')
        file.flush()
        assert list(reader) == []
        file.write('ep": 2, "seconds": 1}\n')
    assert [r["step"] for r in reader] == [2]
