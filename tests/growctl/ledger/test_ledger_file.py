"""The ledger's file: append-only, damage is detected, and a failed write leaves nothing half done."""

import errno
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.ledger.file import TABLES, BrokenLedger, LedgerError, move_aside
from growctl.ledger.ledger import Ledger
from tests.growctl.ledger.records import BASE, GROWN, RUN, SCORE, killed_once, rows


@pytest.fixture
def path(ledger: Ledger) -> Path:
    """A closed ledger with a stage that was killed once."""
    ledger.books("0-small").sync(killed_once(resumed_from=20).anomaly().records)
    ledger.record_scores([SCORE])
    ledger.close()
    return ledger.path


def test_every_table_is_append_only(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert {table for (table,) in connection.execute("SELECT type FROM record")} == {*TABLES}
    for statement in ("DELETE FROM record WHERE entry > 3", "UPDATE record SET entry = entry + 10"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("run", "stages", "message"),
    [
        ({"seed": 2}, [BASE, GROWN], "recorded with seed 1, now it is 2"),
        ({}, [BASE, replace(GROWN, num_steps=41)], "stage 1-large was recorded with num_steps 40"),
        ({"conditions": {"data.tokenizer": "beef"}}, [BASE, GROWN], r"data\.tokenizer None, now it is 'beef'; use"),
        ({}, [BASE], "stage 0-small, stage 1-large; now there are run, stage 0-small"),
    ],
)
def test_recording_again_accepts_no_other_value(ledger: Ledger, run: dict[str, Any], stages: list[Any], message: str):
    before = {table: rows(ledger, table) for table in ("run", "stage")}
    with pytest.raises(LedgerError, match=message):
        ledger.record_run(replace(RUN, **run), stages)
    ledger.record_run(replace(RUN, schedule="../quickstart.yaml"), [BASE, GROWN])
    assert {table: rows(ledger, table) for table in ("run", "stage")} == before
    assert ledger.stages() == [BASE, GROWN]


def test_reading_writes_nothing(path: Path) -> None:
    before = path.read_bytes()
    with Ledger(path, read_only=True) as reader:
        assert reader.run() == RUN
        assert reader.work("0-small") is reader.work("0-small"), "a snapshot is read once"
        with pytest.raises(LedgerError, match="readonly"):
            reader.books("1-large").sync(killed_once(resumed_from=20).records)
    assert path.read_bytes() == before
    with pytest.raises(LedgerError, match="no ledger here"):
        Ledger(path.with_name("other.db"), read_only=True)
    assert [p.name for p in path.parent.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_not_a_whole_ledger_is_rejected_by_name(path: Path, tmp_path: Path, read_only: bool) -> None:
    whole = path.read_bytes()
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE work (x)")
    contents = {"text.db": b"not a database, not at all" * 100, "cut.db": whole[:9000]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "empty.db").touch()
    for name in (*contents, "other.db", "no/l.db", *(["empty.db"] if read_only else [])):
        with pytest.raises(LedgerError, match=name):
            Ledger(tmp_path / name, read_only=read_only)
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents


def test_a_writer_killed_while_it_commits_leaves_a_ledger_that_the_next_one_repairs(path: Path) -> None:
    with Ledger(path, read_only=True) as ledger:
        before = ledger.stage_cost("0-small")
    code = f"""import os, sqlite3
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for step in range(3000):
    values = (step + 99, "evaluation", "0-small", str(step), "{{}}", "-")
    connection.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", values)
os.kill(os.getpid(), 9)"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.with_name("ledger.db-journal").exists()
    with pytest.raises(LedgerError, match="died while writing"):
        Ledger(path, read_only=True)
    with Ledger(path) as repaired:
        assert repaired.stage_cost("0-small") == before
        assert len(repaired.evaluations("0-small")) == 1


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE record SET body = replace(body, 'end', 'ent') WHERE entry = 11", "row 11, of work, does not match"),
        ("UPDATE record SET stage = '1-large' WHERE entry = 11", "row 11, of work, does not match its hash"),
        ("DELETE FROM record WHERE type = 'work'", "is missing"),
        ("DELETE FROM record WHERE type = 'run'", "row 1 is missing"),
        ("INSERT INTO record VALUES (13, 'attempt', '0-small', '9', '{}', 'x')", "row 13, of attempt, does not match"),
        ("DROP TRIGGER keeps_on_update", "its tables are not those"),
        ("CREATE TABLE other (x)", "its tables are not those"),
    ],
)
def test_a_change_to_a_written_row_is_detected(path: Path, statement: str, said: str) -> None:
    """Also one by a tamperer, who takes the triggers away for a moment."""
    with sqlite3.connect(path) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers if "record" in statement else ():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        for _, sql in triggers if "record" in statement else ():
            connection.execute(sql)
    for read_only in (True, False):
        with pytest.raises(BrokenLedger, match=f"{said}.*; `growctl run` sets it aside and rebuilds it"):
            Ledger(path, read_only=read_only)


def test_a_broken_ledger_is_set_aside_with_its_companion_files(path: Path) -> None:
    path.with_name("ledger.db-journal").write_text("j")
    assert move_aside(path).name == "broken-ledger.db"
    path.write_text("again")
    assert move_aside(path).name == "broken-ledger.db-2"
    names = ["broken-ledger.db", "broken-ledger.db-2", "broken-ledger.db-journal"]
    assert sorted(p.name for p in path.parent.iterdir()) == names


@pytest.mark.slow
def test_the_ledger_and_the_report_import_no_heavy_library() -> None:
    code = "import sys, growctl.ledger.ledger, growctl.analysis.results; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "deepspeed", "matplotlib", "rich"} & set(imported)


def test_a_full_disk_is_not_reported_as_a_broken_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        [(pages,)] = ledger.query("PRAGMA page_count")
        ledger.query(f"PRAGMA max_page_count = {pages}")
        many = [replace(BASE, name=f"{'s' * 200}{number}") for number in range(100)]
        with pytest.raises(OSError, match="database or disk is full") as full:
            ledger.record_run(RUN, many)
    assert full.value.errno == errno.ENOSPC
