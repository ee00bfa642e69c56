"""Checkpoints survive engines of any ZeRO stage, precision and rank count bit for bit.

The engines' own checkpoints, once converted, do the same. Engines and ranks are real; the model has an odd width, so
that no parameter divides evenly by two ranks. It has grown by tokens and by a layer in the middle.
"""

import json
import math
import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from model.config import TokenformerConfig, parameter_shapes
from model.initialization import build_model
from model.policy import GrowthPolicy, ramp_config
from stages.checkpoint.manifest import (
    CheckpointError,
    manifest_hash,
    parameter_file,
    read_manifest,
    sealed_manifest,
    verify_checkpoint,
)
from stages.checkpoint.parameters import fill_model, load_model, read_parameter
from stages.engine.convert import convert
from stages.grow.expand import expand
from stages.stage_dir import staging_directory
from tests.stages.checkpoints import STEPS, small_config, write_checkpoint
from tests.stages.engine.roundtrip_worker import MOMENTUM, kinds
from tests.workers import launch

CASES = [(kind, ranks) for ranks in (1, 2) for kind, *_ in kinds(ranks)]
MUON = [case for case in CASES if "muon" in case[0]]
RATE, DECAY, STEPS_TRAINED = 1e-2, 0.1, 3
HALF = torch.ops.mkldnn._is_mkldnn_fp16_supported()
"""Whether this CPU multiplies in float16. DeepSpeed's Newton-Schulz then runs in it, otherwise in float32."""


@pytest.fixture(scope="module")
def roundtrips(training, tmp_path_factory):
    """{ranks: (report, output directory)} and the grown checkpoint that was loaded."""
    folder = tmp_path_factory.mktemp("roundtrip")
    write_checkpoint(folder / "final", small_config(width=9, ffn_tokens=7))
    policy = GrowthPolicy(init="random", depth="interleave")
    added: dict[str, Any] = {"attention_tokens": 3, "ffn_tokens": 5, "new_layers": 1, "layer_tokens": (4, 6)}
    grown = expand(folder / "final", folder / "zero", **added, policy=policy)
    # The same checkpoint with its ramp half way, so that new tokens take part. The new layer is the identity.
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


def is_muons(kind: str, name: str) -> bool:
    return kind.endswith("muon") and name.startswith("blocks.")  # a Tokenformer's blocks hold nothing but tokens


def keys_of(kind: str, name: str) -> set[str]:
    """The tensors in the file of a parameter: Muon has no second moment."""
    return {"fp32", "exp_avg"} if is_muons(kind, name) else {"fp32", "exp_avg", "exp_avg_sq"}


def by_group(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """`values`, given for AdamW's groups, as Muon's groups have them."""
    if not kind.endswith("muon"):
        return values
    muons = {name.replace("-decay", "-muon"): value for name, value in values.items() if "-no-" not in name}
    return muons | {name: value for name, value in values.items() if name.startswith("generation-0")}


@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_masters_moments_and_steps_pass_through_bit_for_bit(roundtrips, kind, ranks):
    initial, results = roundtrips
    report, output = results[ranks]
    manifest = read_manifest(initial)
    for name in parameter_shapes(manifest.model):
        before = read_parameter(initial, manifest, name)._asdict()
        after = load(staging_directory(output / f"{kind}-loaded"), name)
        assert set(after) == keys_of(kind, name)
        for key in keys_of(kind, name):
            assert torch.equal(before[key], after[key]), (name, key)
    assert report[kind]["steps_loaded"] == by_group(kind, STEPS | {"generation-1-decay": 0})
    trained = {"generation-0-decay": 14, "generation-0-no-decay": 14, "generation-1-decay": 3}
    assert report[kind]["steps_trained"] == by_group(kind, trained)
    decay = {"generation-0-decay": 0.1, "generation-0-no-decay": 0.0, "generation-1-decay": 0.1}
    assert report[kind]["decay"] == by_group(kind, decay)


@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_further_training_gives_the_same_losses_and_weights_on_any_zero_stage_and_rank_count(roundtrips, kind, ranks):
    initial, results = roundtrips
    reference, reference_output = results[1]
    plain = kind.removesuffix("-offloaded")
    alike = next(other for other in reference if other.split("-")[1:] == plain.split("-")[1:])
    report, output = results[ranks]
    assert report[kind]["losses"] == pytest.approx(reference[alike]["losses"], abs=1e-4 if "fp32" in kind else 2e-2)
    assert len(set(report[kind]["losses"])) == 3
    names = list(parameter_shapes(read_manifest(initial).model))
    start = {name: load(initial, name)["fp32"].ravel() for name in names}
    here = {name: load(staging_directory(output / f"{kind}-trained"), name)["fp32"].ravel() for name in names}
    there = {
        name: load(staging_directory(reference_output / f"{alike}-trained"), name)["fp32"].ravel() for name in names
    }
    for name in names:
        assert not torch.equal(here[name], start[name]), f"{name} did not train"
    # In bf16, rounding may turn the sign of a gradient next to zero, and Adam makes whole steps of signs: that moves
    # single parameters elsewhere, but not the model. DeepSpeed's Newton-Schulz rounds to float16 on some processors.
    tolerance = 1e-2 if "fp32" in kind and not kind.endswith("muon") else 0.3
    for part in [[name] for name in names] if "fp32" in kind else [names]:
        moved, differs = (torch.cat([there[n] - other[n] for n in part]).norm() for other in (start, here))
        assert differs < tolerance * moved, part


@pytest.mark.parametrize(("kind", "ranks"), [case for case in CASES if "offloaded" in case[0]] + MUON)
def test_an_offloaded_optimizer_and_muon_resume_within_a_stage_bit_for_bit(roundtrips, kind, ranks):
    initial, results = roundtrips
    report, output = results[ranks]
    assert report[kind]["steps_resumed"] == report[kind]["steps_trained"]
    for name in parameter_shapes(read_manifest(initial).model):
        saved, resumed = (load(staging_directory(output / f"{kind}-{state}"), name) for state in ("trained", "resumed"))
        for key in keys_of(kind, name):
            assert torch.equal(saved[key], resumed[key]), (name, key)


@pytest.mark.parametrize("ranks", [1, 2])
def test_adamw_takes_no_moments_from_a_checkpoint_of_muon(roundtrips, ranks):
    loaded = roundtrips[1][ranks][0]["zero1-fp32"]["from_muon"]
    assert loaded == {"steps": dict.fromkeys([*STEPS, "generation-1-decay"], 0), "has_moments": False}


@pytest.mark.parametrize(("kind", "ranks"), MUON)
def test_newton_schulz_runs_on_every_generations_tokens_and_on_nothing_else(roundtrips, kind, ranks):
    initial, results = roundtrips
    expected = Counter(
        shape
        for name, shape in parameter_shapes(read_manifest(initial).model).items()
        if "." in name and name.startswith("blocks.")
    )
    found = Counter(map(tuple, results[ranks][0][kind]["orthogonalised"]))
    assert set(found) == set(expected)
    for shape, number in expected.items():
        # Below ZeRO-3, two ranks that share a matrix both compute its update.
        most = number if ranks == 1 or kind.startswith("zero3") else 2 * number
        assert STEPS_TRAINED * number <= found[shape] <= STEPS_TRAINED * most
    adamw = results[2][0][kind.removesuffix("-muon")]
    assert not adamw["orthogonalised"]


@pytest.mark.parametrize(("kind", "ranks"), [case for case in MUON if "fp32" in case[0]])
def test_three_steps_of_muon_are_those_written_out_in_float64(roundtrips, reference_of_muon, kind, ranks):
    initial, results = roundtrips
    weights, momenta = reference_of_muon
    for name, weight in weights.items():
        trained = load(staging_directory(results[ranks][1] / f"{kind}-trained"), name)
        way = weight - load(initial, name)["fp32"]
        assert torch.dist(trained["fp32"].double(), weight) < (0.1 if HALF else 0.05) * way.norm(), name
        if name in momenta:
            error = torch.dist(trained["exp_avg"].double(), momenta[name])
            assert error < (0.2 if HALF else 1e-3) * momenta[name].norm(), name


@pytest.fixture(scope="module")
def reference_of_muon(roundtrips) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights, and the momentum of Muon's matrices, after the worker's three steps, in float64."""
    initial, _ = roundtrips
    manifest = read_manifest(initial)
    model = build_model(manifest.model)
    fill_model(model, initial, manifest)
    model = model.double()
    tokens = torch.randint(
        0, manifest.model.vocab_size, (STEPS_TRAINED, 4, 10), generator=torch.Generator().manual_seed(9)
    )
    states = {name: read_parameter(initial, manifest, name) for name, _ in model.named_parameters()}
    first, second = ({name: state[i].double() for name, state in states.items()} for i in (1, 2))
    for step in range(STEPS_TRAINED):
        model.zero_grad()
        ids = tokens[step]
        torch.stack([model(one[None], one[None].roll(-1, 1)) for one in ids]).mean().backward()
        for name, parameter in model.named_parameters():
            gradient, weight = parameter.grad, parameter.data
            assert gradient is not None
            if weight.ndim == 2:
                weight *= 1 - RATE * DECAY
            if name.startswith("blocks."):
                first[name] = MOMENTUM * first[name] + (1 - MOMENTUM) * gradient
                update = orthogonalised(MOMENTUM * first[name] + (1 - MOMENTUM) * gradient)
                weight -= RATE * math.sqrt(max(1, len(weight) / weight.shape[1])) * update
            else:
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.95 * second[name] + 0.05 * gradient.square()
                number = STEPS["generation-0-decay"] + step + 1
                scale = second[name].div(1 - 0.95**number).sqrt() + 1e-8
                weight -= RATE * first[name] / (1 - 0.9**number) / scale
    weights = {name: parameter.data for name, parameter in model.named_parameters()}
    return weights, {name: value for name, value in first.items() if name.startswith("blocks.")}


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """Five quintic Newton-Schulz iterations."""
    x = matrix / (matrix.norm() + 1e-7)  # at first, a new layer's keys have no gradient
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_no_engine_imports_mlflow_and_none_below_zero_3_torchs_compiler_to_train_eagerly(roundtrips):
    assert find_spec("mlflow"), "DeepSpeed imports it only where it is installed"
    report, _ = roundtrips[1][2]
    below_zero_3 = ("zero1-fp32", "zero1-bf16", "zero2-fp32", "zero2-bf16")  # built before the others
    assert not any(report[kind]["slow"] for kind in below_zero_3)
    assert not any("mlflow" in kind["slow"] for kind in report.values())


@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_an_engine_checkpoint_is_converted_bit_for_bit(roundtrips, kind, ranks, tmp_path):
    report, output = roundtrips[1][ranks]
    converted = convert(output / f"{kind}-engine", tmp_path / "converted")
    assert verify_checkpoint(tmp_path / "converted") == converted
    for name in parameter_shapes(converted.model):
        live = load(staging_directory(output / f"{kind}-trained"), name)
        written = read_parameter(tmp_path / "converted", converted, name)._asdict()
        for key in keys_of(kind, name):
            assert torch.equal(live[key], written[key]), (name, key)
            assert written[key].any(), (name, key)
    assert converted.group_steps == report[kind]["steps_trained"]
    assert len(set(converted.group_steps.values())) == 2


@pytest.mark.parametrize("kind", ["zero2-fp32", "zero3-bf16"])
def test_a_converted_checkpoint_keeps_the_engines_manifest_and_leaves_no_other_files(roundtrips, kind, tmp_path):
    engine = roundtrips[1][2][1] / f"{kind}-engine"
    said, converted = read_manifest(engine), convert(engine, tmp_path / "converted")
    changed = {"kind", "files", "lineage", "seal"}
    assert converted.model_dump(exclude=changed) == said.model_dump(exclude=changed)
    assert (converted.kind, converted.lineage.training) == ("parameters", said.lineage.training)
    assert converted.lineage.training.losses
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
    deeper = manifest.model.model_copy(update={"blocks": blocks, "block_ids": (*manifest.model.block_ids, 3)})
    hostile = sealed_manifest(manifest.model_copy(update={"model": deeper}))
    (engine / "manifest.json").write_text(hostile.model_dump_json())
    with pytest.raises(CheckpointError, match=r"step_00000003 does not hold all of blocks\.3\."):
        convert(engine, tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000003"]
