"""The history of a checkpoint: a chain of hashes over what determines its weights, with the cost up to each entry."""

import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.checkpoint.lineage import History, Lineage, TrainingRecord, extended
from stages.checkpoint.manifest import TOKENIZER_NAME, history_of, read_manifest
from stages.grow.expand import expand, shrink
from stages.metrics_lines import SourceEvaluation
from tests.stages.checkpoints import small_config, write_checkpoint

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["init", "train", "expand", "shrink"]), st.dictionaries(st.text(max_size=3), st.integers())
    ),
    min_size=1,
    max_size=4,
)


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
