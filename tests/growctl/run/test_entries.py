"""What a run's ledger says of its stages."""

from growctl.ladder.stage_plans import plan_stages
from growctl.run.runner import stage_entry
from tests.growctl.ladders import ladder


def test_a_stage_is_recorded_with_its_layers_its_batch_and_its_context() -> None:
    first = {"name": "flat", "attention_tokens": 4, "ffn_tokens": 8, "train_steps": 20, "sequence_length": 8}
    deeper = {"name": "deep", "num_layers": 6, "train_steps": 20}
    entries = list(map(stage_entry, plan_stages(ladder(stages=[first, deeper]))))
    assert [(entry.num_layers, entry.sequence_length, entry.tokens_per_step) for entry in entries] == [
        (2, 8, 128),
        (6, 16, 128),
    ]
