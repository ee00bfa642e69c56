"""`growctl validate`: one line for every valid file, all errors of invalid ones, and the exit code."""

import json
from pathlib import Path

import pytest

from tests.growctl.runs import run_here
from tests.growctl.schedules import BASE, TEXT, file_of


def test_valid_schedules_give_one_line_each_and_invalid_ones_their_messages(tmp_path: Path) -> None:
    good = file_of(tmp_path, TEXT, "good.yaml")
    typo = file_of(tmp_path, TEXT.replace("weight_decay", "wait").replace("ramp:", "rump:"), "typo.yaml")
    shrinks = file_of(
        tmp_path, TEXT.replace("ffn_tokens: 8\n  train_steps", "ffn_tokens: 7\n  train_steps"), "shrinks.yaml"
    )
    odd = file_of(tmp_path, TEXT.replace("num_heads: 2", "num_heads: 3"), "odd.yaml")
    out, err = run_here("validate", good, typo, "quickstart", shrinks, odd, "no_such", expect=2)
    assert [line.partition(": ")[0] for line in out.splitlines()] == [good, "quickstart"]
    lines = err.splitlines()
    assert lines[0].startswith(f"{typo}: growth.rump = 0.1: no such key; did you mean 'ramp'?")
    assert lines[1] == f"{shrinks}: stages.1.ffn_tokens = 7: must be 8 or more; a growth only adds"
    assert lines[2] == f"{odd}: model.num_heads = 3: must divide model.hidden_size, 32"
    assert lines[3].startswith("'no_such': no such file; growctl comes with ")
    assert len(lines) == 4


def test_the_line_of_a_valid_schedule_has_its_name(tmp_path: Path) -> None:
    path = file_of(tmp_path, f"name: mine\n{TEXT}", "good.yaml")
    assert run_here("validate", path) == (f"{path}: mine is valid\n", "")
    out, _ = run_here("validate", "pile/tokenformer_150m")
    assert out == "pile/tokenformer_150m: tokenformer_150m is valid\n"


def test_json_has_the_same_content_in_one_document(tmp_path: Path) -> None:
    good, bad = file_of(tmp_path, TEXT, "good.yaml"), file_of(tmp_path, "seed: 1\n", "bad.yaml")
    out, err = run_here("validate", "--json", good, bad, expect=2)
    assert err == ""
    first, second = json.loads(out)["schedules"]
    assert first["file"] == good
    assert first["valid"]
    assert not second["valid"]
    assert second["message"].startswith(f"{bad}: 5 problems\n  data: is missing\n")


def test_a_schedule_whose_text_is_missing_is_not_valid_and_cannot_run_and_the_nearest_name_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "texts").mkdir()
    path = file_of(tmp_path, TEXT.replace(BASE["data"]["source"], "text"))
    advice = "set it to python-stdlib, a file, a folder, a glob or a URL of one"
    missing = f"data.source: '{tmp_path}/text' does not exist; '{tmp_path}/texts' does; {advice}"
    out, err = run_here("validate", path, expect=2)
    assert (out, err) == ("", f"{path}: {missing}\n")
    [result] = json.loads(run_here("validate", "--json", path, expect=2)[0])["schedules"]
    assert (result["valid"], result["message"]) == (False, f"{path}: {missing}")
    for command in (("run",), ("run", "--dry-run"), ("prepare",)):
        out, err = run_here(*command, path, "--runs-dir", tmp_path / "runs", expect=2)
        assert err.splitlines()[-1] == f"growctl: {missing}"
    assert not (tmp_path / "runs").exists()
    warnings = json.loads(run_here("plan", path, "--json", "--runs-dir", tmp_path / "runs")[0])["warnings"]
    assert f"{missing}. `run` needs it here, `plan` does not." in warnings


def test_a_local_text_that_prepare_would_reject_is_not_valid(tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("short")
    path = file_of(tmp_path, TEXT.replace(BASE["data"]["source"], str(text)))
    _, err = run_here("validate", path, expect=2)
    assert f"{path}: data.validation_fraction: 0.1 of the 1 document in '{text}' leaves none for validation" in err
    assert run_here("prepare", path, "--runs-dir", tmp_path / "runs", expect=2)[1].endswith(err.split(": ", 1)[1])
    text.write_text("".join(f"line {number} of a book\n" for number in range(30_000)))
    _, err = run_here("validate", path)
    assert "warning: Validation has " in err


def test_settings_that_need_more_steps_than_a_stage_has_are_warnings(tmp_path: Path) -> None:
    path = file_of(tmp_path, TEXT.replace("warmup_steps: 2", "warmup_steps: 2000"))
    out, err = run_here("validate", path)
    assert out.startswith(f"{path}: ")
    assert f"{path}: warning: The ladder trains 36 steps, of which " in err


STACKED = """
name: stacked
data: {source: python-stdlib, vocab_size: 300}
model: {num_layers: 2, hidden_size: 32, num_heads: 2}
stages:
  - {name: d2, attention_tokens: 4, ffn_tokens: 8, train_steps: 20}
  - {name: d4, num_layers: 4, train_steps: 20}
  - {name: d8, attention_tokens: 8, train_steps: 20}
training: {sequence_length: 16, batch_size: 8}
learning_rate: {peak: 1e-3}
growth: {depth: copy-stack, allow_jump: true}
evaluation: {every: 10}
checkpoint: {every: 10}
"""
"""A ladder whose single growths are possible, but whose jump from the first size to the last is not."""


@pytest.mark.parametrize(
    "command", [("validate",), ("plan",), ("run",), ("run", "--no-controls"), ("run", "--dry-run"), ("prepare",)]
)
def test_validate_plan_and_run_reject_an_impossible_control_with_the_same_message(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = file_of(tmp_path, f"{STACKED}controls: [{{kind: single-jump}}]\n")
    out, err = run_here(*command, path, expect=2)
    assert out == ""
    reason = "depth 'copy-stack' cannot add tokens to layers in the same growth; add them in another growth"
    message = f"controls.0.kind = 'single-jump': cannot be run for this ladder, leave it out: {reason}"
    assert err.removeprefix("growctl: ") == f"{path}: {message}\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.yaml"]


def test_a_ladder_is_valid_without_its_impossible_control(tmp_path: Path) -> None:
    path = file_of(tmp_path, STACKED)
    out, err = run_here("validate", path)
    assert (out, err) == (f"{path}: stacked is valid\n", "")


def test_a_choice_for_a_block_is_told_what_it_is() -> None:
    out, err = run_here("validate", "growctl_no_such", "schedules/launch/slurm.yaml", expect=2)
    assert out == ""
    assert len(err.splitlines()) == 2


def test_overrides_behind_the_files_change_each_of_them(tmp_path: Path) -> None:
    paths = [file_of(tmp_path, TEXT, "a.yaml"), file_of(tmp_path, f"name: b\n{TEXT}", "b=c.yaml")]
    out, err = run_here("validate", *paths, "name=both", "++seed=4")
    assert err == ""
    assert out.splitlines() == [f"{path}: both is valid" for path in paths]
    _, err = run_here("validate", paths[0], "model.num_heads=3", expect=2)
    assert f"{paths[0]}: model.num_heads = 3: must divide" in err


def test_an_override_without_a_schedule_is_an_error() -> None:
    said = "growctl: 'seed=4' is an override; give a schedule: growctl validate SCHEDULE KEY=VALUE\n"
    assert run_here("validate", "seed=4", expect=2) == ("", said)
