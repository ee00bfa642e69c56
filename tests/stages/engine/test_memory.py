"""Device memory by part matches real engines on real ranks, and holds algebraically."""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import TokenformerConfig, TransformerConfig, num_parameters, tokenformer_config
from model.policy import grow_config, ramp_config
from model.precision import Precision
from stages.engine.memory import Memory, TrainingMemory, engine_checkpoint_bytes, reduce_bucket
from tests.workers import launch

BASE = tokenformer_config(
    num_layers=2, attention_tokens=100, ffn_tokens=900, vocab_size=300, hidden_size=128, num_heads=4
)
MODELS: dict[int, TokenformerConfig | TransformerConfig] = {
    1: TransformerConfig(vocab_size=500, hidden_size=64, num_heads=4, num_layers=2, ffn_size=256),
    2: ramp_config(grow_config(BASE, attention_tokens=100, ffn_tokens=900), 1.0),
}
"""By number of ranks. One model has two generations, and parameters large enough for ZeRO-3 to partition."""

DEEP: dict[str, TokenformerConfig | TransformerConfig] = {
    "tokenformer": tokenformer_config(
        num_layers=6, attention_tokens=64, ffn_tokens=256, vocab_size=300, hidden_size=64, num_heads=4
    ),
    "transformer": TransformerConfig(vocab_size=300, hidden_size=64, num_heads=4, num_layers=5, ffn_size=256),
}
"""Models that keep most of their activations in blocks, to recompute them."""

KINDS: dict[str, dict[str, Any]] = {
    f"zero{stage}-{precision}": {
        "zero_stage": stage, "precision": precision, "offload": "none", "recompute_every": None
    }
    for stage, precision in product((1, 2, 3), ("bf16", "fp32"))
}  # fmt: skip
KINDS |= {
    f"{name}-offloaded": KINDS[name] | {"offload": "optimizer"} for name in ("zero1-bf16", "zero2-fp32", "zero3-bf16")
}
MUON = {f"{name}-muon": KINDS[name] | {"optimizer": "muon"} for name in ("zero1-bf16", "zero1-fp32", "zero3-bf16")}
KINDS |= MUON
MICRO_BATCH_SIZE = 2


class Case(NamedTuple):
    """An engine to measure."""

    ranks: int
    config: TokenformerConfig | TransformerConfig
    sequence_length: int
    kind: dict[str, Any]

    @property
    def reckoned(self) -> Memory:
        """Its memory by calculation."""
        ranks, length = self.ranks, self.sequence_length
        return TrainingMemory(self.config, world_size=ranks, sequence_length=length, device="cpu", **self.kind).of(
            MICRO_BATCH_SIZE
        )


def recomputing(name: str, every: int) -> dict[str, Any]:
    return KINDS[name] | {"recompute_every": every}


# With long sequences the peak is in the loss or the blocks, with short ones in the gradients and the update.
CASES = {f"{name} on 2": Case(2, MODELS[2], 8, kind) for name, kind in KINDS.items()}
CASES |= {f"{name} on 1": Case(1, MODELS[1], 64, KINDS[name]) for name in ("zero1-bf16", "zero2-fp32", "zero3-bf16")}
SAME_TRAINING = {
    f"{name}, {every} recomputed on 2": f"{name} on 2"
    for name, every in (("zero1-bf16-muon", 1), ("zero2-fp32", 2), ("zero3-bf16-muon", 1))
}
"""Engines with activation checkpointing, and those that train the same without. Those with Muon run AdamW too."""
CASES |= {
    name: CASES[plain]._replace(kind=recomputing(plain.split()[0], int(name.split()[1])))
    for name, plain in SAME_TRAINING.items()
}
CASES |= {
    f"deep {family}, {name}, {every} recomputed": Case(1, DEEP[family], 256, recomputing(name, every))
    for family, name, every in (("tokenformer", "zero3-bf16", 2), ("transformer", "zero1-fp32", 1))
}


@pytest.fixture(scope="module")
def measured(training, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """By case: the bytes at each moment, and a hash of what was trained."""
    reports: dict[str, dict[str, Any]] = {}
    for ranks in MODELS:
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        cases = {
            name: {
                "model": case.config.model_dump(mode="json"),
                "micro_batch_size": MICRO_BATCH_SIZE,
                "sequence_length": case.sequence_length,
                **case.kind,
            }
            # ZeRO-3 last: it replaces torch's linear function for the rest of the process, which other bits follow from
            for name, case in sorted(CASES.items(), key=lambda item: item[1].kind["zero_stage"])
            if case.ranks == ranks
        }
        (folder / "cases.json").write_text(json.dumps(cases))
        launch(Path(__file__).parent / "memory_worker.py", ranks, str(folder))
        reports |= json.loads((folder / "measured.json").read_text())
    return reports


def reckoned(kind: dict[str, Any]) -> Memory:
    return Case(2, MODELS[2], 8, kind).reckoned


@pytest.mark.parametrize("name", CASES)
def test_the_parts_match_the_engine_within_2_percent_and_the_peak_within_15(measured, name) -> None:
    memory, real = CASES[name].reckoned, measured[name]
    lasting = memory.parameters + memory.gradients + memory.optimizer + memory.host  # a CPU is its own host
    assert lasting == pytest.approx(real["forward"] - memory.activations, rel=0.02)
    if "offloaded" not in name:
        assert memory.total == pytest.approx(real["peak"], rel=0.15)
    if name.startswith("deep"):  # checkpointing saves what is reckoned
        without = CASES[name]._replace(kind=CASES[name].kind | {"recompute_every": None}).reckoned
        assert real["peak"] < 0.9 * without.total


@pytest.mark.parametrize("name", SAME_TRAINING)
def test_an_engine_trains_to_the_same_bits_with_and_without_activation_checkpointing(measured, name) -> None:
    assert measured[name]["trained"] == measured[SAME_TRAINING[name]]["trained"]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "zero1-fp32-muon"])  # shared momentum, twice
def test_a_checkpoint_within_a_stage_is_as_large_as_its_files(measured, name) -> None:
    kind = KINDS[name]
    optimizer = kind.get("optimizer", "adamw")
    expected = engine_checkpoint_bytes(MODELS[2], optimizer, kind["zero_stage"], kind["precision"])
    assert measured[f"{name} on 2"]["checkpoint"] == pytest.approx(expected, rel=0.02)


def test_the_host_holds_masters_moments_and_gradients_when_they_are_offloaded() -> None:
    for name in KINDS.keys() - MUON.keys():
        kind = KINDS[name]
        here, moved = (reckoned(kind | {"offload": offload}) for offload in ("none", "optimizer"))
        assert moved.optimizer == here.host == 0, name
        assert moved.host >= 16 / 12 * here.optimizer, name
        assert moved.total < here.total, name
        assert moved.total == sum(asdict(moved).values()) - moved.host - moved.total


ZERO = st.sampled_from([1, 2, 3])
PRECISIONS = st.sampled_from(["bf16", "fp32"])


@given(ZERO, PRECISIONS, st.sampled_from(["none", "optimizer"]), st.integers(1, 512), st.integers(1, 8))
def test_more_ranks_never_need_more_memory_each_and_more_sequences_never_less(
    stage, precision, offload, ranks, size
) -> None:
    def total(world_size: int, micro_batch_size: int) -> int:
        memory = TrainingMemory(
            MODELS[2],
            zero_stage=stage,
            world_size=world_size,
            precision=precision,
            offload=offload,
            sequence_length=64,
        ).of(micro_batch_size)
        assert min(memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.temporary) >= 0
        return memory.total

    # a single rank need not gather the parameters that ZeRO-3 partitions
    assert ranks == 1 or total(2 * ranks, size) <= total(ranks, size)
    assert total(ranks, size + 1) >= total(ranks, size)


@settings(max_examples=20)
@given(PRECISIONS, st.integers(1, 64))
def test_the_optimizer_takes_12_bytes_per_parameter_over_all_ranks(precision: Precision, ranks: int) -> None:
    for config in MODELS.values():
        for stage in (1, 2, 3):
            memory = TrainingMemory(
                config, zero_stage=stage, world_size=ranks, precision=precision, sequence_length=16
            ).of(MICRO_BATCH_SIZE)
            assert 0 <= ranks * memory.optimizer - 12 * num_parameters(config) < 12 * ranks


def test_the_bucket_is_never_larger_than_the_model_or_deepspeeds_default() -> None:
    assert [reduce_bucket(size) for size in (10, 499_999_999, 500_000_001)] == [10, 499_999_999, 500_000_000]


PAPERS_LARGEST = tokenformer_config(
    num_layers=12, attention_tokens=8620, ffn_tokens=34480, vocab_size=50304, hidden_size=768, num_heads=12
)


def test_the_papers_largest_model_on_eight_devices() -> None:
    """By hand: the table of stages/engine/memory.py, plus the scores of 4 x 1024 data tokens."""
    count = num_parameters(PAPERS_LARGEST)
    memory = TrainingMemory(PAPERS_LARGEST, zero_stage=1, world_size=8, precision="bf16", sequence_length=1024).of(4)
    assert memory.parameters == 2 * count
    assert memory.gradients == 4 * count
    assert memory.optimizer == pytest.approx(1.5 * count)
    scores = 2 * 12 * (4 * 8620 + 34480) * 4 * 1024
    assert scores < memory.activations < 1.2 * scores


def test_zero_1_copies_the_gradients_of_the_embedding_and_of_muons_matrices_into_one_tensor_to_reduce_them() -> None:
    """With AdamW one group has both and fills DeepSpeed's bucket alone; the evaluation then needs the most."""
    count = num_parameters(PAPERS_LARGEST)
    kind: dict[str, Any] = {"zero_stage": 1, "world_size": 8, "precision": "bf16", "sequence_length": 16}
    adamw, muon = (TrainingMemory(PAPERS_LARGEST, optimizer=name, **kind).of(1) for name in ("adamw", "muon"))
    assert adamw.temporary == pytest.approx(4 * count, rel=0.02)
    assert muon.temporary == pytest.approx(6 * count, rel=0.02)


def test_an_evaluation_at_a_longer_context_needs_memory_of_its_own_beyond_a_micro_batch_of_its_tokens() -> None:
    kind: dict[str, Any] = {"zero_stage": 1, "world_size": 1, "precision": "fp32", "device": "cpu"}
    alike, longer = (
        TrainingMemory(MODELS[1], sequence_length=16, evaluation_length=length, **kind) for length in (16, 1 << 16)
    )
    assert longer.of(1).total > 2 * alike.of(1).total, "one sequence of 65,536 tokens"
    assert longer.of(1 << 14).total == alike.of(1 << 14).total, "of which a micro-batch has as many as four"
