"""Manifests that are damaged, hostile or of another version are rejected on one line; their history is a hash chain."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.checkpoint.lineage import History, Lineage, TrainingRecord, extended
from stages.checkpoint.manifest import TOKENIZER_NAME, CheckpointError, history_of, read_manifest
from stages.checkpoint.sealed import plain_path, seal
from stages.grow.expand import expand, shrink
from stages.metrics_lines import SourceEvaluation
from tests.stages.checkpoints import small_config, write_checkpoint

CANNOT = r"cannot be read: "
TEXTS = {
    **dict.fromkeys(["{", "\xff", "[]", "null", "NaN", '"manifest"', '{"format_version": 1e400}'], CANNOT + r"\S"),
    '{"kind": "parameters"}': CANNOT + "model",
    '{"step": ' + "9" * 5_000 + "}": CANNOT + r"\S",
    "[" * 100_000: CANNOT + "it is nested too deeply",
    '{"a":' * 5_000 + "1" + "}" * 5_000: CANNOT,
}
CHANGES: list[tuple[dict[str, Any], str]] = [
    *(({"step": wrong}, CANNOT + "step") for wrong in (-1, "1", 1.5)),
    *(({name: wrong}, CANNOT + name) for name, wrong in (("files", []), ("model", 3), ("lineage", None), ("new", 1))),
    ({"model": {"head_width": 10**400}}, CANNOT + "a number in it is out of range"),
    ({"seal": None}, "seal is missing"),
    ({"seal": None, "format_version": 1}, "format version 1; this growctl reads 3"),
    ({"format_version": 4}, "format version 4; this growctl reads 3"),
]


def test_what_is_not_a_manifest_gives_a_one_line_message(checkpoint):
    path = checkpoint / "manifest.json"
    found = json.loads(path.read_text())
    texts = [*TEXTS.items()]
    for changes, message in CHANGES:
        model = changes.get("model", {})
        whole = found | changes | ({"model": found["model"] | model} if isinstance(model, dict) else {})
        texts.append((json.dumps({name: value for name, value in whole.items() if value is not None}), message))
    for text, message in texts:
        path.write_text(text, encoding="latin-1")
        with pytest.raises(CheckpointError, match=rf"manifest\.json .*{message}") as caught:
            read_manifest(checkpoint)
        assert len(str(caught.value)) < 500
        assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_checkpoint_is_named(checkpoint, tmp_path):
    (checkpoint / "manifest.json").unlink()
    (tmp_path / "file").touch()
    for message in ("final .*: it has no manifest.json", "file is not a checkpoint", "nothing does not exist"):
        with pytest.raises(CheckpointError, match=message):
            read_manifest(tmp_path / message.split()[0])


def test_a_flipped_bit_anywhere_in_a_manifest_is_detected(checkpoint):
    path = checkpoint / "manifest.json"
    whole = path.read_bytes()
    for position in [*range(0, len(whole), 37), len(whole) - 1]:
        data = bytearray(whole)
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            read_manifest(checkpoint)


def test_a_changed_digit_that_rounding_would_hide_is_detected(checkpoint):
    path, loss = checkpoint / "manifest.json", 0.30000000000000004
    manifest = read_manifest(checkpoint)
    lineage = manifest.lineage.model_copy(update={"training": TrainingRecord(validation_loss=loss)})
    text = seal(manifest.model_copy(update={"lineage": lineage})).model_dump_json()
    other = text.replace("0.30000000000000004", "0.30000000000000005")
    assert json.loads(other) == json.loads(text), "the same float64, written otherwise"
    path.write_text(text)
    read_manifest(checkpoint)
    path.write_text(other)
    with pytest.raises(CheckpointError, match="seal does not match"):
        read_manifest(checkpoint)


def test_a_file_name_that_could_lead_out_of_the_directory_is_rejected(checkpoint):
    manifest = read_manifest(checkpoint)
    hostile = seal(manifest.model_copy(update={"files": {"a/../../b": next(iter(manifest.files.values()))}}))
    (checkpoint / "manifest.json").write_text(hostile.model_dump_json())
    with pytest.raises(CheckpointError, match="must be a plain relative path within the directory"):
        read_manifest(checkpoint)


@settings(max_examples=200)
@given(st.text(st.sampled_from("./\\a~\0 "), max_size=12) | st.text(max_size=8))
def test_a_name_is_accepted_exactly_if_it_is_the_plain_path_of_a_file_within_its_directory(name):
    path = f"/checkpoint/{name}"
    if os.path.normpath(path) == path and not {"\\", "\0"} & set(name):
        assert plain_path(name) == name
    else:
        with pytest.raises(ValueError, match="must be a plain relative path"):
            plain_path(name)


DETERMINED_BY = st.dictionaries(st.text(max_size=3), st.integers())
OPERATION = st.tuples(st.sampled_from(["init", "train", "expand", "shrink"]), DETERMINED_BY)
OPERATIONS = st.lists(OPERATION, min_size=1, max_size=4)


def chain(operations: list[tuple[Any, dict[str, Any]]]) -> Lineage:
    history: History = ()
    for operation, determined_by in operations:
        history = extended(history, operation, determined_by, num_parameters=5)
    return Lineage(operation="train", history=history)


@settings(max_examples=30)
@given(OPERATIONS, OPERATIONS)
def test_two_histories_have_the_same_hash_exactly_if_every_operation_is_the_same(first, second):
    assert (chain(first).history[-1].hash == chain(second).history[-1].hash) == (first == second)


def test_expanding_and_shrinking_pass_history_and_cost_on(tmp_path: Path):
    parent = history_of(write_checkpoint(tmp_path / "parent"))
    grown = expand(tmp_path / "parent", tmp_path / "grown", attention_tokens=3).lineage
    assert grown.history[:-1] == parent
    assert (grown.history[-1].operation, grown.cost) == ("expand", parent[-1].cost)
    again = expand(tmp_path / "parent", tmp_path / "again", attention_tokens=3).lineage
    other = expand(tmp_path / "parent", tmp_path / "other", attention_tokens=3, seed=9).lineage
    assert again.history[-1].hash == grown.history[-1].hash != other.history[-1].hash
    back = shrink(tmp_path / "grown", tmp_path / "back").lineage
    assert [entry.operation for entry in back.history] == ["import", "expand", "shrink"]


def test_a_checkpoint_without_history_is_known_by_its_tensors_at_unknown_cost(tmp_path: Path):
    one = write_checkpoint(tmp_path / "one")
    other = write_checkpoint(tmp_path / "other", small_config(attention_tokens=6))
    [known], [again], [different] = map(history_of, (one, read_manifest(tmp_path / "one"), other))
    assert known == again
    assert known.hash != different.hash
    bare = one.model_copy(update={"files": {path: one.files[path] for path in one.files if path != TOKENIZER_NAME}})
    with_tokenizer = bare.model_copy(update={"files": {**bare.files, TOKENIZER_NAME: next(iter(bare.files.values()))}})
    assert history_of(bare) == history_of(with_tokenizer) == (known,)
    assert not known.cost.complete


def test_a_stage_that_ended_without_a_finite_loss_has_a_record_that_can_be_read_again() -> None:
    nan = math.nan
    source = SourceEvaluation(loss=nan, bits_per_byte=nan, num_tokens=1, trained_tokens=2, epochs=0.5)
    record = TrainingRecord(losses=[(5, nan)], pending=[[nan]], validation_loss=nan, by_source={"a": source})
    again = TrainingRecord.model_validate_json(record.model_dump_json())
    assert again.by_source
    assert again.by_source["a"]["bits_per_byte"] is None
    assert again.last_loss is None
