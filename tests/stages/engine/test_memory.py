"""Device memory by part matches real engines on real ranks, and holds algebraically."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config_growth import grow_config, ramp_config
from model.decoder_config import decoder_config
from model.shapes import ModelConfig, num_parameters
from model.tokenformer_config import tokenformer_config
from stages.engine.memory import Memory, TrainingMemory, engine_checkpoint_bytes, reduce_bucket
from stages.spec import TrainSpec
from tests.stages.engine.kinds import PLAIN, engine_spec
from tests.workers import launch

SHAPE: dict[str, Any] = {"vocab_size": 300, "hidden_size": 64, "num_heads": 4}
BASE = tokenformer_config(num_layers=2, attention_tokens=100, ffn_tokens=900, **SHAPE | {"hidden_size": 128})
GROWN = ramp_config(grow_config(BASE, attention_tokens=100, ffn_tokens=900), 1.0)
"""Two generations, and parameters large enough for ZeRO-3 to partition."""

DECODER = decoder_config(num_layers=2, ffn_tokens=256, **SHAPE | {"vocab_size": 500})
DEEP_TOKENFORMER = tokenformer_config(num_layers=6, attention_tokens=64, ffn_tokens=256, **SHAPE)
DEEP_DECODER = decoder_config(num_layers=5, ffn_tokens=256, **SHAPE)
"""Models that keep most of their activations in blocks, to recompute them."""

OFFLOADED = ("zero1-bf16-offloaded", "zero2-fp32-offloaded", "zero3-bf16-offloaded")
MUON = ("zero1-bf16-muon", "zero1-fp32-muon", "zero3-bf16-muon")
KINDS = (*PLAIN, *OFFLOADED, *MUON)


class Case(NamedTuple):
    """An engine to measure."""

    ranks: int
    kind: str
    config: ModelConfig = GROWN
    sequence_length: int = 8
    recompute_every: int | None = None

    @property
    def spec(self) -> TrainSpec:
        sizes = {"micro_batch_size": 2, "batch_size": 4 * self.ranks, "sequence_length": self.sequence_length}
        return engine_spec(self.kind, self.config, recompute_every=self.recompute_every, **sizes)

    @property
    def reckoned(self) -> Memory:
        """Its memory by calculation."""
        return reckoned(self.kind, self.config, self.ranks, 2, self.sequence_length, self.recompute_every)


def reckoned(
    kind: str, config: Any = GROWN, ranks: int = 2, micro: int = 2, length: int = 8, every: int | None = None
) -> Memory:
    spec = engine_spec(kind, config)
    fields: dict[str, Any] = spec.model_dump(include={"zero_stage", "precision", "offload"})
    fields |= {"optimizer": spec.optimizer.name, "recompute_every": every, "device": "cpu"}
    return TrainingMemory(config, world_size=ranks, sequence_length=length, **fields).of(micro)


# With long sequences the peak is in the loss or the blocks, with short ones in the gradients and the update.
CASES = {f"{kind} on 2": Case(2, kind) for kind in KINDS}
CASES |= {f"{kind} on 1": Case(1, kind, DECODER, 64) for kind in ("zero1-bf16", "zero3-bf16")}
RECOMPUTING = {f"{kind}, recomputed on 2": Case(2, kind, recompute_every=1) for kind in (MUON[0], MUON[2])}
DEEP = {
    "deep tokenformer": Case(1, "zero3-bf16", DEEP_TOKENFORMER, 256, recompute_every=2),
    "deep decoder": Case(1, "zero1-fp32", DEEP_DECODER, 256, recompute_every=1),
}
CASES |= RECOMPUTING | DEEP


@pytest.fixture(scope="module")
def measured(training, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """By case: the bytes at each moment, and a hash of what was trained."""
    reports: dict[str, dict[str, Any]] = {}
    for ranks in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        specs = {name: case.spec for name, case in CASES.items() if case.ranks == ranks}
        # ZeRO-3 last: it replaces torch's linear function for the rest of the process, which other bits follow from
        ordered = sorted(specs, key=lambda name: specs[name].zero_stage)
        (folder / "cases.json").write_text(json.dumps({name: specs[name].model_dump_json() for name in ordered}))
        launch(Path(__file__).parent / "memory_worker.py", ranks, str(folder))
        reports |= json.loads((folder / "measured.json").read_text())
    return reports


@pytest.mark.parametrize("name", CASES)
def test_the_parts_match_the_engine_within_2_percent_and_the_peak_within_15(measured, name) -> None:
    memory, real = CASES[name].reckoned, measured[name]
    lasting = memory.parameters + memory.gradients + memory.optimizer + memory.host  # a CPU is its own host
    assert lasting == pytest.approx(real["forward"] - memory.activations, rel=0.02)
    if "offloaded" not in name:
        assert memory.total == pytest.approx(real["peak"], rel=0.15)
    if name in DEEP:  # checkpointing saves what is reckoned
        assert real["peak"] < 0.9 * CASES[name]._replace(recompute_every=None).reckoned.total


@pytest.mark.parametrize("name", RECOMPUTING)
def test_an_engine_trains_to_the_same_bits_with_and_without_activation_checkpointing(measured, name) -> None:
    """Those with Muon run AdamW too."""
    assert measured[name]["trained"] == measured[name.replace(", recomputed", "")]["trained"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zero1-fp32-muon"])  # shared momentum, twice
def test_a_checkpoint_within_a_stage_is_as_large_as_its_files(measured, kind) -> None:
    spec = CASES[f"{kind} on 2"].spec
    assert spec.precision != "auto"
    expected = engine_checkpoint_bytes(GROWN, spec.optimizer.name, spec.zero_stage, spec.precision)
    assert measured[f"{kind} on 2"]["checkpoint"] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("kind", PLAIN)
def test_the_host_holds_masters_moments_and_gradients_when_they_are_offloaded(kind) -> None:
    here, there = reckoned(kind), reckoned(f"{kind}-offloaded")
    assert there.optimizer == here.host == 0
    assert there.host >= 16 / 12 * here.optimizer
    assert here.total > there.total == sum(asdict(there).values()) - there.host - there.total


@settings(max_examples=40)
@given(st.sampled_from([*PLAIN, *(f"{kind}-offloaded" for kind in PLAIN)]), st.integers(1, 512), st.integers(1, 8))
def test_more_ranks_never_need_more_memory_each_and_more_sequences_never_less(kind, ranks, size) -> None:
    one, more_ranks, more_sequences = (
        reckoned(kind, GROWN, *sizes, length=64) for sizes in ((ranks, size), (2 * ranks, size), (ranks, size + 1))
    )
    assert min(asdict(one).values()) >= 0
    # a single rank need not gather the parameters that ZeRO-3 partitions
    assert ranks == 1 or more_ranks.total <= one.total
    assert more_sequences.total >= one.total


@settings(max_examples=20)
@given(st.sampled_from(PLAIN), st.sampled_from([GROWN, DECODER]), st.integers(1, 64))
def test_the_optimizer_takes_12_bytes_per_parameter_over_all_ranks(kind, config, ranks) -> None:
    assert 0 <= ranks * reckoned(kind, config, ranks).optimizer - 12 * num_parameters(config) < 12 * ranks


def test_the_bucket_is_never_larger_than_the_model_or_deepspeeds_default() -> None:
    assert [reduce_bucket(size) for size in (10, 499_999_999, 500_000_001)] == [10, 499_999_999, 500_000_000]


@pytest.mark.parametrize(("kind", "bytes_each"), [("zero1-bf16", 4), ("zero1-bf16-muon", 6)])
def test_zero_1_copies_the_gradients_of_the_embedding_and_of_muons_matrices_to_reduce_them(kind, bytes_each) -> None:
    """With AdamW one group has both and fills DeepSpeed's bucket alone; the evaluation then needs the most."""
    sizes: dict[str, Any] = {"vocab_size": 50304, "hidden_size": 768, "num_heads": 12}
    papers_largest = tokenformer_config(num_layers=12, attention_tokens=8620, ffn_tokens=34480, **sizes)
    memory = reckoned(kind, papers_largest, ranks=8, micro=1, length=16)
    assert memory.temporary == pytest.approx(bytes_each * num_parameters(papers_largest), rel=0.02)


def test_an_evaluation_at_a_longer_context_needs_memory_of_its_own_beyond_a_micro_batch_of_its_tokens() -> None:
    kind: dict[str, Any] = {"zero_stage": 1, "world_size": 1, "precision": "fp32", "device": "cpu"}
    alike, longer = (
        TrainingMemory(DECODER, sequence_length=16, evaluation_length=length, **kind) for length in (16, 1 << 16)
    )
    assert longer.of(1).total > 2 * alike.of(1).total, "one sequence of 65,536 tokens"
    assert longer.of(1 << 14).total == alike.of(1 << 14).total, "of which a micro-batch has as many as four"
