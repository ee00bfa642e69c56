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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("\xff", "cannot be read"),
        ('{"kind": "parameters"}', "cannot be read: model"),
        (None, "has no manifest.json"),
    ],
)
def test_a_broken_or_missing_manifest_gives_a_one_line_message(checkpoint, text, message):
    if text is None:
        (checkpoint / "manifest.json").unlink()
    else:
        (checkpoint / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=message):
        read_manifest(checkpoint)


def test_a_file_is_not_a_checkpoint_and_a_missing_path_does_not_exist(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file is not a checkpoint"):
        read_manifest(tmp_path / "file")
    with pytest.raises(CheckpointError, match="nothing does not exist"):
        read_manifest(tmp_path / "nothing")


def test_a_manifest_of_another_format_version_is_rejected(checkpoint):
    data = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(data | {"format_version": 99}))
    with pytest.raises(CheckpointError, match="format version 99; this growctl reads 2"):
        read_manifest(checkpoint)


def rewritten(directory, **changes):
    """Changes values in the manifest's JSON without updating its seal."""
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


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


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_manifest_without_a_seal_is_rejected_whatever_its_version(checkpoint, version):
    data = json.loads((checkpoint / "manifest.json").read_text())
    bare = {name: value for name, value in data.items() if name != "seal"}
    (checkpoint / "manifest.json").write_text(json.dumps(bare | {"format_version": version}))
    with pytest.raises(CheckpointError, match="seal is missing" if version == 2 else f"format version {version}"):
        read_manifest(checkpoint)


OUTSIDE = ["../secret", "/etc/passwd", "a/../../secret", "a//b", "./a", "", "a\\..\\b", "a\0b", "..", "a/"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_file_name_that_could_lead_out_of_the_directory_is_rejected(checkpoint, name):
    manifest = read_manifest(checkpoint)
    entry = next(iter(manifest.files.values()))
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


def test_an_overflowing_size_gives_a_one_line_message(checkpoint):
    path = checkpoint / "manifest.json"
    found = json.loads(path.read_text())
    found["model"]["hidden_size"] = 10**400
    path.write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read: a number in it is out of range"):
        read_manifest(checkpoint)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        '{"step": ' + "9" * 5_000 + "}",
        '{"format_version": 1e400}',
        "[]",
        "null",
        "NaN",
        '"manifest"',
    ],
    ids=["deep list", "deep object", "huge integer", "infinite", "list", "null", "not a number", "string"],
)
def test_json_that_is_not_a_manifest_gives_a_one_line_message(checkpoint, text):
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read: \S") as caught:
        read_manifest(checkpoint)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "changes", [{"step": -1}, {"step": "1"}, {"step": 1.5}, {"files": []}, {"model": 3}, {"lineage": None}, {"new": 1}]
)
def test_values_of_the_wrong_type_give_a_one_line_message(checkpoint, changes):
    rewritten(checkpoint, **changes)
    with pytest.raises(CheckpointError, match=f"cannot be read: {next(iter(changes))}"):
        read_manifest(checkpoint)
