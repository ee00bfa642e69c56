"""A ladder on images: killed and resumed, grown, reported, evaluated and compared, as one on text."""

import json
from pathlib import Path
from typing import Any

import pytest

from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import read_manifest
from tests.growctl.runs import run_here
from tests.reliability.harness import KilledRun, check_same_end
from tests.reliability.points import BY_NAME

SCHEDULE = """
seed: 3
data:
  images: {source: sklearn-digits, num_classes: 10, validation_fraction: 0.2}
model: {num_layers: 1, hidden_size: 32, num_heads: 2, image: {size: 8, patch: 2, channels: 1}}
stages:
  - {name: small, attention_tokens: 8, ffn_tokens: 16, train_steps: 8}
  - {name: large, num_layers: 2, attention_tokens: 12, ffn_tokens: 24, train_steps: 10}
training: {batch_size: 16, log_every: 2, precision: fp32}
learning_rate: {peak: 5e-3, warmup_steps: 3}
growth: {ramp: 0.2}
evaluation: {every: 4}
checkpoint: {every: 3}
launch: {devices: 1}
"""
AUGMENTED = SCHEDULE.replace("0.2}\nmodel", "0.2, augmentation: {crop: [0.6, 1.0], mixup: 0.2, cutmix: 0.5}}\nmodel")
TOKENS = 17
"""Of an image: 16 patches and the class token."""

KILLS = [
    BY_NAME["step: gradients there, no update"].fault("step", "runner", nth=5),
    BY_NAME["expand: initial/ half written"].fault("expand", "runner", "large", nth=4),
    BY_NAME["checkpoint: all files, no manifest"].fault("checkpoint", "one rank", "large", nth=2),
]


@pytest.fixture(scope="module")
def undisturbed(training: None, tmp_path_factory: pytest.TempPathFactory) -> KilledRun:
    run = KilledRun(tmp_path_factory.mktemp("images") / "run", ranks=1, schedule=AUGMENTED)
    run.to_the_end()
    return run


def document(run: KilledRun, *words: object, expect: int = 0) -> Any:
    """The JSON that a command prints, or its message."""
    json_wanted = () if expect else ("--json",)
    outputs = run_here(*words, *json_wanted, "--runs-dir", run.runs, expect=expect, cwd=run.folder)
    return outputs[1] if expect else json.loads(outputs[0])


def test_a_killed_run_on_augmented_images_ends_in_the_same_bits(undisturbed: KilledRun, tmp_path: Path) -> None:
    killed = KilledRun(tmp_path / "killed", ranks=1, schedule=AUGMENTED)
    killed.to_the_end(KILLS)
    assert set(killed.struck()) == {fault["name"] for fault in KILLS}
    check_same_end(killed, undisturbed)


def test_growth_moves_no_loss_and_costs_count_the_patches_of_every_image(undisturbed: KilledRun) -> None:
    metrics = undisturbed.metrics()
    before, after = (
        metrics[f"stages/{stage}", step, point]
        for stage, step, point in (("0-small", 8, "final"), ("1-large", 0, "after_growth"))
    )
    assert after["loss"] == pytest.approx(before["loss"], abs=EXACT_GROWTH)
    assert (after["top1"], after["top5"]) == (before["top1"], before["top5"])
    final = read_manifest(undisturbed.directory / "stages/1-large/final")
    assert final.samples_seen == 18 * 16
    assert final.lineage.cost is not None
    assert final.lineage.cost.tokens == 18 * 16 * TOKENS
    assert final.classes == tuple("0123456789")


def test_report_eval_and_verify_measure_what_the_run_measured(undisturbed: KilledRun) -> None:
    finals = [undisturbed.directory / f"stages/{name}/final" for name in ("0-small", "1-large")]
    measured = undisturbed.metrics()["stages/1-large", 10, "final"]
    [reported] = [run for run in document(undisturbed, "report", "three")["runs"] if run["name"] == "three"]
    assert [reported["stages"][-1][key] for key in ("top1", "top5", "bits_per_byte")] == [
        *(measured["top1"], measured["top5"], None)
    ]
    scores = document(undisturbed, "eval", finals[1], "--split", "validation")["scores"]
    found = {score["metric"]: score["value"] for score in scores}
    assert found == pytest.approx({key: measured[key] for key in ("loss", "top1", "top5")}, abs=1e-6)
    initial = undisturbed.directory / "stages/1-large/initial"
    verified = document(undisturbed, "verify", finals[0], initial, "--sequences", "8")
    assert verified["comparison"]["verdict"] == "preserved"
    assert document(undisturbed, "inspect", finals[1])["text"]["context"] is None
    assert all(each["whole"] for each in document(undisturbed, "verify", "--integrity", undisturbed.runs)["integrity"])


def test_what_needs_text_or_other_classes_is_refused(undisturbed: KilledRun, tmp_path: Path) -> None:
    final = undisturbed.directory / "stages/1-large/final"
    for words, message in (
        (("generate", final, "a"), "is a model of images"),
        (("eval", final, "--text", __file__), "--text is for models of text"),
        (("eval", final, "--split", "validation", "--context", 4), "--context is for models of text"),
        (("inspect", final, "--context", 4), "--context is for models of text"),
        (("verify", final, final, "--context", 4), "--context is for models of text"),
        (("export", final, tmp_path / "out", "--context-length", 4), "--context-length is for models of text"),
        (("init", "--from", final, "--params", "2x"), "is a model of images"),
        (("prepare", undisturbed.schedule, "--executor", "ray"), "images are prepared on this machine"),
        (("data", "show", undisturbed.schedule), "has images; data show reads"),
        (
            ("run", undisturbed.schedule, "data.images.augmentation.crop=[0.5,1]"),
            "data.images.augmentation.crop.0 = 0.5, but it was started with 0.6",
        ),
    ):
        assert message in document(undisturbed, *words, expect=2)
    other = tmp_path / "other.yaml"
    other.write_text(f"start: {{checkpoint: {final}}}" + SCHEDULE.replace("num_classes: 10", "num_classes: 9"))
    assert "data.images.num_classes" in document(undisturbed, "validate", other, expect=2)
