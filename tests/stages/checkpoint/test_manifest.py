"""Manifests that are damaged, hostile or of another version are rejected, with a message of one line."""

import json
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.checkpoint.lineage import TrainingRecord
from stages.checkpoint.manifest import CheckpointError, read_manifest, sealed_manifest
from stages.checkpoint.sealed import plain_path

BROKEN = {
    **dict.fromkeys(
        ["{", "\xff", "[]", "null", "NaN", '"manifest"', '{"format_version": 1e400}'], r"cannot be read: \S"
    ),
    '{"kind": "parameters"}': "cannot be read: model",
    '{"step": ' + "9" * 5_000 + "}": r"cannot be read: \S",
    "[" * 100_000: "cannot be read: it is nested too deeply",
    '{"a":' * 5_000 + "1" + "}" * 5_000: "cannot be read: ",
}


def test_json_that_is_not_a_manifest_gives_a_one_line_message(checkpoint):
    for text, message in BROKEN.items():
        (checkpoint / "manifest.json").write_text(text, encoding="latin-1")
        with pytest.raises(CheckpointError, match=rf"manifest\.json {message}") as caught:
            read_manifest(checkpoint)
        assert len(str(caught.value)) < 500
        assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_checkpoint_is_named(checkpoint, tmp_path):
    (checkpoint / "manifest.json").unlink()
    (tmp_path / "file").touch()
    wrong = {
        "final": ".*: it has no manifest.json",
        "file": "is not a checkpoint",
        "nothing": "does not exist",
    }
    for name, message in wrong.items():
        with pytest.raises(CheckpointError, match=f"{name} {message}"):
            read_manifest(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": -1}, "cannot be read: step"),
        ({"step": "1"}, "cannot be read: step"),
        ({"step": 1.5}, "cannot be read: step"),
        ({"files": []}, "cannot be read: files"),
        ({"model": 3}, "cannot be read: model"),
        ({"lineage": None}, "cannot be read: lineage"),
        ({"new": 1}, "cannot be read: new"),
        ({"model": {"hidden_size": 10**400}}, "cannot be read: a number in it is out of range"),
        ({"seal": None}, "seal is missing"),
        ({"seal": None, "format_version": 1}, "format version 1; this growctl reads 3"),
        ({"format_version": 4}, "format version 4; this growctl reads 3"),
    ],
    ids=str,
)
def test_wrong_values_give_a_one_line_message(checkpoint, changes, message):
    path = checkpoint / "manifest.json"
    found = json.loads(path.read_text())
    if isinstance(changes.get("model"), dict):
        changes = {"model": found["model"] | changes["model"]}
    path.write_text(json.dumps({name: value for name, value in (found | changes).items() if value is not None}))
    with pytest.raises(CheckpointError, match=rf"manifest\.json .*{message}"):
        read_manifest(checkpoint)


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
    text = sealed_manifest(manifest.model_copy(update={"lineage": lineage})).model_dump_json()
    other = text.replace("0.30000000000000004", "0.30000000000000005")
    assert json.loads(other) == json.loads(text), "the same float64, written otherwise"
    path.write_text(text)
    read_manifest(checkpoint)
    path.write_text(other)
    with pytest.raises(CheckpointError, match="seal does not match"):
        read_manifest(checkpoint)


OUTSIDE = ["../secret", "/etc/passwd", "a/../../secret", "a//b", "./a", "", "a\\..\\b", "a\0b", "..", "a/"]


def test_a_file_name_that_could_lead_out_of_the_directory_is_rejected(checkpoint):
    manifest = read_manifest(checkpoint)
    entry = next(iter(manifest.files.values()))
    for name in OUTSIDE:
        hostile = sealed_manifest(manifest.model_copy(update={"files": {name: entry}}))
        (checkpoint / "manifest.json").write_text(hostile.model_dump_json())
        with pytest.raises(CheckpointError, match="must be a plain relative path within the directory"):
            read_manifest(checkpoint)


@settings(max_examples=200)
@given(st.text(st.sampled_from("./\\a~\0 "), max_size=12) | st.text(max_size=8))
def test_no_accepted_name_leads_out_of_its_directory(name):
    try:
        plain_path(name)
    except ValueError:
        return
    below = os.path.normpath(os.path.join("/checkpoint", name))
    assert below.startswith("/checkpoint/")
    assert below == f"/checkpoint/{name}"
