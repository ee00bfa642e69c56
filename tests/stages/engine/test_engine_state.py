"""Checkpoints survive engines of any ZeRO stage, precision and rank count bit for bit.

The engines' own checkpoints, once converted, do the same. Engines and ranks are real; the model has an odd width, so
that no parameter divides evenly by two ranks.
"""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import safetensors.torch
import torch

from model.config import TokenformerConfig, parameter_shapes
from model.initialization import build_model
from model.policy import GrowthPolicy, ramp_config
from stages.checkpoint.manifest import CheckpointError, manifest_hash, parameter_file, read_manifest, sealed_manifest
from stages.checkpoint.parameters import load_model, read_parameter
from stages.checkpoint.verify import verify_checkpoint
from stages.engine.convert import convert
from stages.grow.expand import expand
from stages.stage_dir import staging_directory
from tests.stages.checkpoints import STEPS, small_config, write_checkpoint
from tests.workers import launch

OFFLOADED = [f"zero{stage}-bf16-offloaded" for stage in (1, 2, 3)]
KINDS = [f"zero{stage}-{precision}" for stage in (1, 2, 3) for precision in ("fp32", "bf16")] + OFFLOADED


@pytest.fixture(scope="module")
def roundtrips(training, tmp_path_factory):
    """{ranks: (report, output directory)} and the grown checkpoint that was loaded."""
    folder = tmp_path_factory.mktemp("roundtrip")
    write_checkpoint(folder / "final", small_config(width=9, ffn_tokens=7))
    policy = GrowthPolicy(init="random")
    grown = expand(folder / "final", folder / "zero", attention_tokens=3, ffn_tokens=5, policy=policy)
    # The same checkpoint with its ramp half way, so that new tokens take part.
    (folder / "initial").mkdir()
    (folder / "zero" / "parameters").rename(folder / "initial" / "parameters")
    assert isinstance(grown.model, TokenformerConfig)
    half = grown.model_copy(update={"model": ramp_config(grown.model, 0.5)})
    (folder / "initial" / "manifest.json").write_text(sealed_manifest(half).model_dump_json())
    results = {}
    for ranks in (1, 2):
        output = folder / f"ranks{ranks}"
        output.mkdir()
        launch(Path(__file__).parent / "roundtrip_worker.py", ranks, str(folder / "initial"), str(output))
        results[ranks] = (json.loads((output / "report.json").read_text()), output)
    return folder / "initial", results


def load(directory: Path, name: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(directory / parameter_file(name))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_masters_moments_and_steps_pass_through_bit_for_bit(roundtrips, kind, ranks):
    initial, results = roundtrips
    report, output = results[ranks]
    manifest = read_manifest(initial)
    for name in build_model(manifest.model, device="meta").state_dict():
        before = read_parameter(initial, manifest, name)._asdict()
        after = load(staging_directory(output / f"{kind}-loaded"), name)
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            assert torch.equal(before[key], after[key]), (name, key)
    assert report[kind]["steps_loaded"] == STEPS | {"generation-1-decay": 0}
    assert report[kind]["steps_trained"] == {
        "generation-0-decay": 14,
        "generation-0-no-decay": 14,
        "generation-1-decay": 3,
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_further_training_gives_the_same_losses_and_weights_on_any_zero_stage_and_rank_count(roundtrips, kind, ranks):
    initial, results = roundtrips
    precision = kind.split("-")[1]
    reference, reference_output = results[1]
    report, output = results[ranks]
    tolerance = 2e-6 if precision == "fp32" else 2e-2
    assert report[kind]["losses"] == pytest.approx(reference[f"zero1-{precision}"]["losses"], abs=tolerance)
    assert len(set(report[kind]["losses"])) == 3
    for name in build_model(read_manifest(initial).model, device="meta").state_dict():
        here = load(staging_directory(output / f"{kind}-trained"), name)["fp32"]
        there = load(staging_directory(reference_output / f"zero1-{precision}-trained"), name)["fp32"]
        torch.testing.assert_close(here, there, rtol=0, atol=2e-5 if precision == "fp32" else 2e-2)
        assert not torch.equal(here, load(initial, name)["fp32"]), f"{name} did not train"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", OFFLOADED)
def test_an_offloaded_optimizer_resumes_within_a_stage_bit_for_bit(roundtrips, kind, ranks):
    initial, results = roundtrips
    report, output = results[ranks]
    assert report[kind]["steps_resumed"] == report[kind]["steps_trained"]
    for name in build_model(read_manifest(initial).model, device="meta").state_dict():
        saved, resumed = (load(staging_directory(output / f"{kind}-{state}"), name) for state in ("trained", "resumed"))
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            assert torch.equal(saved[key], resumed[key]), (name, key)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_group_keeps_its_decay(roundtrips, ranks):
    report, _ = roundtrips[1][ranks]
    for kind in KINDS:
        assert report[kind]["decay"] == {
            "generation-0-decay": 0.1,
            "generation-0-no-decay": 0.0,
            "generation-1-decay": 0.1,
        }


def test_no_engine_imports_mlflow_and_none_below_zero_3_torchs_compiler_to_train_eagerly(roundtrips):
    assert find_spec("mlflow"), "DeepSpeed imports it only where it is installed"
    report, _ = roundtrips[1][1]
    below_zero_3 = ("zero1-fp32", "zero1-bf16", "zero2-fp32", "zero2-bf16")  # built before the others
    assert not any(report[kind]["slow"] for kind in below_zero_3)
    assert not any("mlflow" in report[kind]["slow"] for kind in KINDS)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_checkpoint_is_converted_bit_for_bit(roundtrips, kind, ranks, tmp_path):
    report, output = roundtrips[1][ranks]
    converted = convert(output / f"{kind}-engine", tmp_path / "converted")
    assert verify_checkpoint(tmp_path / "converted") == converted
    for name in parameter_shapes(converted.model):
        live = load(staging_directory(output / f"{kind}-trained"), name)
        written = read_parameter(tmp_path / "converted", converted, name)._asdict()
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            assert torch.equal(live[key], written[key]), (name, key)
            assert written[key].any(), (name, key)
    assert converted.group_steps == report[kind]["steps_trained"]
    assert len(set(converted.group_steps.values())) == 2


@pytest.mark.parametrize("kind", ["zero2-fp32", "zero3-bf16"])
def test_a_converted_checkpoint_keeps_the_engines_manifest_and_leaves_no_other_files(roundtrips, kind, tmp_path):
    engine = roundtrips[1][2][1] / f"{kind}-engine"
    said, converted = read_manifest(engine), convert(engine, tmp_path / "converted")
    changed = {"kind", "files", "lineage", "seal", "signature"}
    assert converted.model_dump(exclude=changed) == said.model_dump(exclude=changed)
    assert (converted.kind, converted.lineage.details) == ("parameters", said.lineage.details)
    assert converted.lineage.details["losses"]
    assert converted.lineage.parent == manifest_hash(engine)
    assert load_model(tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["converted"]
    assert {path.name for path in (tmp_path / "converted").iterdir()} == {"parameters", "manifest.json"}


@pytest.mark.parametrize("kind", ["zero1-fp32", "zero3-fp32"])
def test_the_missing_parameter_of_an_engine_checkpoint_is_named(roundtrips, kind, tmp_path):
    engine = tmp_path / "step_00000003"
    shutil.copytree(roundtrips[1][2][1] / f"{kind}-engine", engine)
    manifest = read_manifest(engine)
    blocks = (*manifest.model.blocks, manifest.model.blocks[0])
    deeper = manifest.model.model_copy(update={"blocks": blocks, "block_ids": (0, 1, 2)})
    hostile = sealed_manifest(manifest.model_copy(update={"model": deeper}))
    (engine / "manifest.json").write_text(hostile.model_dump_json())
    with pytest.raises(CheckpointError, match=r"step_00000003 does not hold all of blocks\.2\."):
        convert(engine, tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000003"]
