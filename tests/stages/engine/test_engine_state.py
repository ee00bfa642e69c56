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
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
from torch import Tensor

from model.config_growth import ramp_config
from model.initialization import build_model
from model.policy import GrowthPolicy
from model.shapes import parameter_shapes
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint.manifest import CheckpointError, manifest_hash, parameter_file, read_manifest, verify_checkpoint
from stages.checkpoint.parameters import fill_model, load_model, read_parameter
from stages.checkpoint.sealed import seal
from stages.engine.convert import convert
from stages.grow.expand import expand
from stages.stage_dir import staging_directory
from tests.stages.checkpoints import STEPS, small_config, write_checkpoint
from tests.stages.engine.kinds import MOMENTUM, PLAIN
from tests.stages.engine.roundtrip_worker import STEPS as STEPS_TRAINED
from tests.stages.engine.roundtrip_worker import batches, kinds
from tests.workers import launch

CASES = [(kind, ranks) for ranks in (1, 2) for kind in kinds(ranks)]
MUON = [case for case in CASES if "muon" in case[0]]
RATE, DECAY = 1e-2, 0.1
HALF = torch.ops.mkldnn._is_mkldnn_fp16_supported()
"""Whether this CPU multiplies in float16. DeepSpeed's Newton-Schulz then runs in it, otherwise in float32."""

for_each_engine = pytest.mark.parametrize(("kind", "ranks"), CASES)


class Roundtrips(NamedTuple):
    """The grown checkpoint that engines loaded, and by number of ranks: what they report and where they wrote."""

    initial: Path
    reports: dict[int, dict[str, dict[str, Any]]]
    outputs: dict[int, Path]

    def states(self, kind: str, ranks: int, moment: str) -> dict[str, dict[str, Tensor]]:
        """The tensors of each parameter, when the engine had been loaded, trained or resumed."""
        directory = staging_directory(self.outputs[ranks] / f"{kind}-{moment}")
        names = parameter_shapes(read_manifest(self.initial).model)
        return {name: safetensors.torch.load_file(directory / parameter_file(name)) for name in names}

    def at_first(self, kind: str) -> dict[str, dict[str, Tensor]]:
        """The same in the checkpoint, as far as the engine's optimizer has them: Muon has no second moment."""
        manifest = read_manifest(self.initial)
        names = parameter_shapes(manifest.model)
        states = {name: read_parameter(self.initial, manifest, name)._asdict() for name in names}
        for name in states:
            if is_muons(kind, name):
                del states[name]["exp_avg_sq"]
        return states


@pytest.fixture(scope="module")
def roundtrips(training, tmp_path_factory) -> Roundtrips:
    folder = tmp_path_factory.mktemp("roundtrip")
    write_checkpoint(folder / "final", small_config(width=9, ffn_tokens=7))
    policy = GrowthPolicy(init="random", depth="interleave")
    added: dict[str, Any] = {"attention_tokens": 3, "ffn_tokens": 5, "new_layers": 1, "layer_tokens": (4, 6)}
    grown = expand(folder / "final", folder / "initial", **added, policy=policy)
    # Its ramp is half way, so that new tokens take part. The new layer is the identity.
    assert isinstance(grown.model, TokenformerConfig)
    half = grown.model_copy(update={"model": ramp_config(grown.model, 0.5)})
    (folder / "initial" / "manifest.json").write_text(seal(half).model_dump_json())
    found = Roundtrips(folder / "initial", {}, {ranks: folder / f"ranks{ranks}" for ranks in (1, 2)})
    for ranks, output in found.outputs.items():
        output.mkdir()
        launch(Path(__file__).parent / "roundtrip_worker.py", ranks, str(found.initial), str(output))
        found.reports[ranks] = json.loads((output / "report.json").read_text())
    return found


def is_muons(kind: str, name: str) -> bool:
    return kind.endswith("muon") and name.startswith("blocks.")  # a Tokenformer's blocks hold nothing but tokens


def by_group(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """`values`, given for AdamW's groups, as Muon's groups have them."""
    if not kind.endswith("muon"):
        return values
    muons = {name.replace("-decay", "-muon"): value for name, value in values.items() if "-no-" not in name}
    return muons | {name: value for name, value in values.items() if name.startswith("generation-0")}


def assert_same(found: dict[str, dict[str, Tensor]], expected: dict[str, dict[str, Tensor]]) -> None:
    assert found.keys() == expected.keys()
    for name, state in expected.items():
        assert found[name].keys() == state.keys()
        for key, value in state.items():
            assert torch.equal(found[name][key], value), (name, key)


@for_each_engine
def test_masters_moments_and_steps_pass_through_bit_for_bit(roundtrips, kind, ranks):
    assert_same(roundtrips.states(kind, ranks, "loaded"), roundtrips.at_first(kind))
    report = roundtrips.reports[ranks][kind]
    assert report["steps_loaded"] == by_group(kind, STEPS | {"generation-1-decay": 0})
    trained = {"generation-0-decay": 14, "generation-0-no-decay": 14, "generation-1-decay": 3}
    assert report["steps_trained"] == by_group(kind, trained)
    decay = {"generation-0-decay": 0.1, "generation-0-no-decay": 0.0, "generation-1-decay": 0.1}
    assert report["decay"] == by_group(kind, decay)


@for_each_engine
def test_further_training_gives_the_same_losses_and_weights_on_any_zero_stage_and_rank_count(roundtrips, kind, ranks):
    plain = kind.removesuffix("-offloaded")
    alike = next(other for other in roundtrips.reports[1] if other.split("-")[1:] == plain.split("-")[1:])
    losses, expected = roundtrips.reports[ranks][kind]["losses"], roundtrips.reports[1][alike]["losses"]
    assert losses == pytest.approx(expected, abs=1e-4 if "fp32" in kind else 2e-2)
    assert len(set(losses)) == 3
    start, here, there = (
        {name: state["fp32"].ravel() for name, state in states.items()}
        for states in (
            roundtrips.at_first(kind),
            roundtrips.states(kind, ranks, "trained"),
            roundtrips.states(alike, 1, "trained"),
        )
    )
    for name in start:
        assert not torch.equal(here[name], start[name]), f"{name} did not train"
    # In bf16, rounding may turn the sign of a gradient next to zero, and Adam makes whole steps of signs: that moves
    # single parameters elsewhere, but not the model. DeepSpeed's Newton-Schulz rounds to float16 on some processors.
    tolerance = 1e-2 if "fp32" in kind and not kind.endswith("muon") else 0.3
    for part in [[name] for name in start] if "fp32" in kind else [list(start)]:
        moved, differs = (torch.cat([there[n] - other[n] for n in part]).norm() for other in (start, here))
        assert differs < tolerance * moved, part


@pytest.mark.parametrize("ranks", [1, 2])
def test_adamw_takes_no_moments_from_a_checkpoint_of_muon(roundtrips, ranks):
    assert roundtrips.reports[ranks]["zero1-fp32"]["from_muon"] == [False, 0, 0, 0]


@pytest.mark.parametrize(("kind", "ranks"), MUON)
def test_newton_schulz_runs_on_every_generations_tokens_and_on_nothing_else(roundtrips, kind, ranks):
    shapes = parameter_shapes(read_manifest(roundtrips.initial).model)
    expected = Counter(shape for name, shape in shapes.items() if is_muons(kind, name))
    found = Counter(map(tuple, roundtrips.reports[ranks][kind]["orthogonalised"]))
    assert set(found) == set(expected)
    for shape, number in expected.items():
        # Below ZeRO-3, two ranks that share a matrix both compute its update.
        most = number if ranks == 1 or kind.startswith("zero3") else 2 * number
        assert STEPS_TRAINED * number <= found[shape] <= STEPS_TRAINED * most
    assert not roundtrips.reports[2][kind.removesuffix("-muon")]["orthogonalised"]


def test_three_steps_of_muon_are_those_written_out_in_float64(roundtrips):
    manifest = read_manifest(roundtrips.initial)
    model = build_model(manifest.model)
    fill_model(model, roundtrips.initial, manifest)
    model = model.double()
    states = roundtrips.at_first("adamw")
    first, second = ({name: states[name][key].double() for name in states} for key in ("exp_avg", "exp_avg_sq"))
    for step, tokens in enumerate(batches(manifest.model.vocab_size), start=STEPS["generation-0-decay"] + 1):
        model.zero_grad()
        torch.stack([model(ids, ids.roll(-1, 1)) for ids in tokens.split(1)]).mean().backward()
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
                scale = second[name].div(1 - 0.95**step).sqrt() + 1e-8
                weight -= RATE * first[name] / (1 - 0.9**step) / scale
    for kind, ranks in [case for case in MUON if "fp32" in case[0]]:
        for name, trained in roundtrips.states(kind, ranks, "trained").items():
            weight = model.get_parameter(name).detach()
            way = (weight - states[name]["fp32"]).norm()
            assert torch.dist(trained["fp32"].double(), weight) < (0.1 if HALF else 0.05) * way, (kind, ranks, name)
            if name.startswith("blocks."):
                error = torch.dist(trained["exp_avg"].double(), first[name])
                assert error < (0.2 if HALF else 1e-3) * first[name].norm(), (kind, ranks, name)


def orthogonalised(matrix: Tensor) -> Tensor:
    """Five quintic Newton-Schulz iterations."""
    x = matrix / (matrix.norm() + 1e-7)  # at first, a new layer's keys have no gradient
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_no_engine_imports_mlflow_and_none_below_zero_3_torchs_compiler_to_train_eagerly(roundtrips):
    assert find_spec("mlflow"), "DeepSpeed imports it only where it is installed"
    slow = {kind: report["slow"] for kind, report in roundtrips.reports[2].items()}
    assert not any(slow[kind] for kind in PLAIN[:4])  # below ZeRO-3, built before the others
    assert not any("mlflow" in modules for modules in slow.values())


@for_each_engine
def test_an_engine_checkpoint_resumes_and_is_converted_bit_for_bit(roundtrips, kind, ranks, tmp_path):
    engine, report = roundtrips.outputs[ranks] / f"{kind}-engine", roundtrips.reports[ranks][kind]
    trained = roundtrips.states(kind, ranks, "trained")
    if "steps_resumed" in report:
        assert_same(roundtrips.states(kind, ranks, "resumed"), trained)
        assert report["steps_resumed"] == report["steps_trained"]
    said, converted = read_manifest(engine), convert(engine, tmp_path / "converted")
    assert verify_checkpoint(tmp_path / "converted") == converted
    for name, state in trained.items():
        written = read_parameter(tmp_path / "converted", converted, name)._asdict()
        for key, value in state.items():
            assert torch.equal(value, written[key]), (name, key)
            assert value.any(), (name, key)
    assert converted.group_steps == report["steps_trained"]
    assert len(set(converted.group_steps.values())) == 2
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
    shutil.copytree(roundtrips.outputs[2] / f"{kind}-engine", engine)
    manifest = read_manifest(engine)
    blocks = (*manifest.model.blocks, manifest.model.blocks[0])
    deeper = manifest.model.model_copy(update={"blocks": blocks, "block_ids": (*manifest.model.block_ids, 3)})
    hostile = seal(manifest.model_copy(update={"model": deeper}))
    (engine / "manifest.json").write_text(hostile.model_dump_json())
    with pytest.raises(CheckpointError, match=r"step_00000003 does not hold all of blocks\.3\."):
        convert(engine, tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000003"]
