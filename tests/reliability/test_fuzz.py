"""Any file content gives a result or a named error with a short message, quickly, and nothing is written.

A few hundred cases; GROWCTL_SOAK=1 makes them ten thousand.
"""

import copy
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule, parse_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document
from growctl.run.requests import schedule_yaml
from growctl.run.screen import Screen
from growctl.runs.find import read_run
from growctl.runs.show import read_facts, section
from growctl.runs.status import find_status
from growctl.schedule.errors import ScheduleError
from growctl.text.console import Terminal
from growctl.text.documents import plain
from growctl.text.terminal import print_sections
from model.flops import Flops
from model.shapes import num_parameters
from stages.checkpoint.directory import newest_checkpoint
from stages.checkpoint.lineage import Lineage, TrainingCost, TrainingRecord, extended
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.checkpoint.sealed import _seal_of
from stages.corpus.token_files import open_token_files
from stages.data.dataset import verify_dataset
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.samples import TrainingSamples
from stages.metrics import read_metrics
from tests.growctl.ladders import ladder
from tests.growctl.ledger.records import BASE as STAGE
from tests.growctl.ledger.records import GROWN, RUN, killed_once
from tests.growctl.schedules import BASE, TEXT, changed
from tests.growctl.text.schemas import assert_follows_schema
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.stages.corpus.token_file_definition import texts_of, write_datatrove_files, write_megatron_files
from tests.stages.data.test_dataset import write_dataset
from tests.stages.test_metrics import EVENTS, with_crc

CASES = 10_000 if os.environ.get("GROWCTL_SOAK") else 300


def cases(share: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings that run this share of all cases."""
    return settings(
        max_examples=max(1, round(CASES * share)),
        suppress_health_check=[*settings().suppress_health_check, HealthCheck.data_too_large],
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a smaller case takes minutes to find
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the files of a case; its parent, the working directory, must stay unchanged."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "beside").write_text("untouched")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "inside"


def files_in(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def judged(call: Callable[[], Any], error: type[ValueError], folder: Path) -> Any:
    """The result of `call`; None if it raises `error` with a short message. Asserts that `folder` is unchanged."""
    before, result = files_in(folder), None
    try:
        result = call()
    except error as refused:
        message = str(refused)
        assert 0 < len(message.strip()) <= 6_000
        message.encode()
        assert error is not ScheduleError or max(map(len, message.replace(str(folder), "").splitlines())) < 500
        assert "Traceback" not in message
    assert files_in(folder) == before
    return result


STRANGE: tuple[Any, ...] = (
    *(10**400, -(10**400), 2**63, -1, 0, 1e308, -0.0, math.nan, math.inf, -math.inf, True, None, "", "0", "null"),
    *("1e999", "9" * 5000, "15B", "99999T", "../../outside", "/etc/passwd", "~", "a/b", "\x00", "\ud800", "\u202e"),
    *("1.5k", "auto", "softmax", "decoder"),
    *("${seed}", "${nothing}", "${oc.env:HOME}", "${oc.decode:'[1,'}", "${", "???", "_target_", "x" * 10_000),
    *("\U0001f600" * 50, "'; rm -rf /", "%s%n{0}", [], {}, [[]], [{}], {"": 1}, {"a.b": 1}, {"_target_": "os.system"}),
)
SCALARS = st.sampled_from(STRANGE) | st.integers() | st.floats() | st.booleans() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below, max_size=4)
)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in nested plain data."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@st.composite
def mutated(draw: st.DrawFn, good: Any) -> Any:
    """`good` with up to three values replaced, removed, added or moved."""
    data = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(data))
        if not found:
            return data
        container, key = draw(st.sampled_from(found))
        what = draw(st.sampled_from(("replace", "replace", "remove", "add", "move")))
        if what == "remove":
            del container[key]
            continue
        if what == "add" and isinstance(container, dict):
            key = draw(st.text(max_size=8) | st.sampled_from(("_target_", "defaults", "hydra", "name")))
        if what == "move":
            value = data[draw(st.sampled_from(sorted(data)))]
        else:
            value = draw(VALUES | st.integers(50, 400).map(nested))
        container[key] = copy.deepcopy(value)  # the draws are mutated in place
    return data


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """`good` truncated, with flipped bits, with inserted bytes, or with a part repeated."""
    content = bytearray(good)
    strange = [b"[" * 5000, b"{" * 5000, b"\xff\xfe", b"\x00", b'"', b"\n", b"9" * 5000]
    strange += [b"&a [*a, *a]", b"${", b": "]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        what = draw(st.sampled_from(("flip", "flip", "cut", "insert", "repeat", "zeros")))
        if what == "cut":
            del content[at:]
        elif what == "flip" and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "insert":
            content[at:at] = draw(st.sampled_from(strange) | st.binary(max_size=30))
        elif what == "repeat":
            content[at:at] = content[at : at + draw(st.integers(1, 200))]
        else:
            content[at : at + 50] = bytes(len(content[at : at + 50]))
    return bytes(content)


def assert_usable(schedule: Any) -> None:
    """Computes everything that growctl derives from a schedule without training; None was rejected."""
    if schedule is not None:
        assert schedule.stages
        assert len(make_plan(schedule).stages) == len(schedule.stages)
        assert all(control.name for control in plan_controls(schedule, []))
        assert schedule_yaml(schedule)


@pytest.mark.slow
@cases(0.8)
@given(data=mutated(changed({"model.num_kv_heads": 2})) | VALUES)
def test_a_schedule_is_accepted_or_rejected(folder: Path, data: Any) -> None:
    assert_usable(judged(lambda: parse_schedule(data, label="s", default_name="s"), ScheduleError, folder.parent))


KEYS = st.sampled_from(["seed", "stages.0.name", "stages.9.name", "data", "launch", "model.x", "hydra", "~seed"])
OVERRIDE = st.builds("{}={}".format, KEYS, st.text(max_size=20) | st.sampled_from(STRANGE))
FILE = st.just(TEXT.encode()) | damaged(TEXT.encode()) | mutated(BASE).map(lambda data: json.dumps(data).encode())


@pytest.mark.slow
@cases(0.2)
@given(content=FILE, overrides=st.lists(OVERRIDE, max_size=1))
@example(content=TEXT.encode(), overrides=["data.source=p" + "9" * 300]).via("a name that no file can have")
@example(content=TEXT.encode(), overrides=["name=/" + "9" * 300]).via("the same, before names are checked")
def test_a_schedule_file_and_an_override_are_accepted_or_rejected(folder, content: bytes, overrides: list[str]) -> None:
    path = folder / "s.yaml"
    path.write_bytes(content)
    assert_usable(judged(lambda: load_schedule(str(path), overrides), ScheduleError, folder.parent))


def damaged_json(data: st.DataObject, good: dict[str, Any]) -> bytes:
    """A manifest, mutated as JSON or as bytes."""
    if data.draw(st.booleans()):
        document = data.draw(mutated(good))
        if isinstance(document, dict) and data.draw(st.booleans()):  # else the seal alone would reject it
            document["seal"] = _seal_of(json.loads(json.dumps(document), parse_float=str))
        return json.dumps(document).encode()
    return data.draw(damaged(json.dumps(good, indent=1).encode()))


@pytest.fixture
def checkpoint(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A trained checkpoint in `folder`, without its manifest, and the manifest."""
    size = num_parameters(small_config(num_layers=1))
    cost = TrainingCost(steps=7, tokens=700, flops=Flops(1.0, 2.0, 3.0), device_seconds=4.5)
    history = extended((), "init", {"seed": 3}, num_parameters=size)
    history = extended(history, "train", {"steps": 7}, num_parameters=size, cost=cost, made_in="run/small")
    record = TrainingRecord(stage="small", losses=[(5, 2.0)], validation_loss=2.5)
    lineage = Lineage(operation="train", training=record, history=history)
    write_checkpoint(folder / "step_00000007", small_config(num_layers=1), step=7, lineage=lineage)
    return folder / "step_00000007", json.loads((folder / "step_00000007/manifest.json").read_bytes())


@pytest.mark.slow
@cases(0.2)
@given(data=st.data())
def test_a_checkpoint_is_verified_and_shown_or_rejected(folder: Path, checkpoint: Any, data: st.DataObject) -> None:
    directory, good = checkpoint
    content = damaged_json(data, good)
    (directory / "manifest.json").write_bytes(content)

    def shown() -> None:
        facts = read_facts(directory)
        print_sections([section(facts)], Terminal(file=io.StringIO(), width=80))
        assert_follows_schema(plain(facts), "show")

    judged(shown, CheckpointError, folder.parent)
    judged(lambda: verify_checkpoint(directory), CheckpointError, folder.parent)
    said: list[str] = []
    found = newest_checkpoint(folder, said.append)
    assert (found is None) == bool(said), "it is set aside, with a message, or used"
    for aside in folder.glob("broken-*"):
        aside.rename(directory)


@cases(0.1)
@given(data=st.data())
def test_a_dataset_manifest_is_accepted_or_rejected(folder: Path, data: st.DataObject) -> None:
    directory = write_dataset(folder / "text-1", [100], [100], token_bytes=2)
    good = json.loads((directory / "manifest.json").read_bytes())
    (directory / "manifest.json").write_bytes(damaged_json(data, good))

    def used() -> tuple[int, ...]:
        verify_dataset(directory)
        EvaluationWindows(directory, "validation", 16)
        return TrainingSamples(directory, 16, 3).batch(0, 2).shape

    assert judged(used, DataError, folder.parent) in (None, (2, 17))


@cases(0.3)
@given(data=st.data(), name=st.sampled_from(["a.idx", "a.bin", "b.ds", "b.ds.index", "b.ds.metadata"]))
def test_token_files_of_other_programs_are_accepted_or_rejected(folder: Path, data: st.DataObject, name: str) -> None:
    for old in folder.iterdir():
        old.unlink()
    write_megatron_files(folder / "a", [[[5, 6, 7], [8]], [[1], [2, 3]], []])
    path = folder / ("a" if name.startswith("a") else write_datatrove_files(folder / "b.ds", [[5, 6], [7]]).name)
    (folder / name).write_bytes(data.draw(damaged((folder / name).read_bytes())))

    def read() -> list[list[int]]:
        [files] = open_token_files(path)
        return texts_of(files)

    documents = judged(read, DataError, folder.parent)
    assert documents is None or all(isinstance(token, int) for document in documents for token in document)


RECORDS = killed_once(resumed_from=20).records
TEXTS = [json.dumps(EVENTS[r["event"]] | r).encode() for r in RECORDS]
LINES = [with_crc(text).rstrip() for text in TEXTS]


@pytest.mark.slow
@cases(0.15)
@given(data=st.data())
def test_no_metrics_line_stops_a_run_or_a_command_that_reads_it(folder: Path, data: st.DataObject) -> None:
    plan = plan_stages(ladder())[0]
    screen = Screen(Console(file=io.StringIO(), width=80))
    screen.run_started("tiny", None, plan_stages(ladder()))
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(lines) - 1))
        changed = mutated(json.loads(TEXTS[number])).map(lambda record: with_crc(json.dumps(record).encode()).rstrip())
        lines[number] = data.draw(damaged(LINES[number]) | changed)
    stage = folder / "tiny/stages/0-small"
    stage.mkdir(parents=True)
    (stage / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with Ledger(folder / "tiny/ledger.db") as ledger:
        records = read_metrics(stage / "metrics.jsonl")
        ledger.record_run(RUN, [STAGE, GROWN])
        for record in records:
            screen.record(plan, record)
        if screen.ladder.stages[plan.name].loss is not None:
            screen.progress()
        for over in (False, True):
            ledger.books("0-small").sync(records, attempt_over=over)
        assert ledger.stage_cost("0-small").spent.wall_seconds >= 0.0
    assert_follows_schema(plain(report_document([read_run(folder / "tiny/ledger.db")])), "report")
    find_status(folder)
    shutil.rmtree(folder / "tiny")


def told(path: Path) -> Any:
    """All values that a ledger returns."""
    with Ledger(path, read_only=True) as ledger:
        names = [stage.name for stage in ledger.stages()]
        booked = [(ledger.stage_cost(n), ledger.evaluations(n), ledger.anomalies(n), ledger.finished(n)) for n in names]
        return ledger.run(), ledger.stages(), booked, report_document([read_run(path)])


@cases(0.15)
@given(data=st.data())
def test_changed_bytes_of_a_ledger_are_detected_or_harmless(folder: Path, data: st.DataObject) -> None:
    path = folder / "ledger.db"
    for old in folder.iterdir():
        old.unlink()
    with Ledger(path) as ledger:
        ledger.record_run(RUN, [STAGE, GROWN])
        ledger.books("0-small").sync(RECORDS)
    whole = told(path)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    found = judged(lambda: told(path), LedgerError, folder.parent)
    assert found is None or found == whole
    with suppress(LedgerError), Ledger(path) as ledger:
        ledger.record_run(RUN, [STAGE, GROWN])
        ledger.books("0-small").sync(RECORDS, attempt_over=True)
        assert ledger.stage_cost("0-small").kept.steps == 40
