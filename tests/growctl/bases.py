"""Start checkpoints for tests, made by hand, and schedules that start from them."""

from pathlib import Path
from typing import Any

from growctl.ladder.load import load_schedule
from growctl.schedule.blocks import Schedule
from model.flops import Flops
from model.shapes import ModelConfig, num_parameters
from model.tokenformer_config import TokenformerConfig, tokenformer_config
from stages.checkpoint.files import write_file
from stages.checkpoint.lineage import Lineage, TrainingCost, extended
from stages.checkpoint.manifest import Manifest, read_manifest
from stages.checkpoint.sealed import seal
from stages.stage_dir import MANIFEST_NAME
from tests.growctl.schedules import TEXT, file_of
from tests.stages.checkpoints import write_checkpoint

COST = TrainingCost(steps=100, tokens=12_800, flops=Flops(1e9, 5e8, 5e8), device_seconds=3.0)


def base_config(attention_tokens: int = 4, ffn_tokens: int = 8, **changes: Any) -> TokenformerConfig:
    """The model of the first stage of `tests.growctl.schedules.BASE`, with changes."""
    shape = {"num_layers": 2, "vocab_size": 300, "hidden_size": 32, "num_heads": 2} | changes
    return tokenformer_config(attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, **shape)


def write_base(directory: Path, config: ModelConfig | None = None, cost: TrainingCost | None = COST) -> Path:
    """A whole trained checkpoint of that cost in `directory`; None: of no known history."""
    config = config or base_config()
    write_checkpoint(directory, config)
    if cost is not None:
        settings = {"sequence_length": 16}
        history = extended((), "train", settings, num_parameters=num_parameters(config), cost=cost)
        change_manifest(directory, lineage=Lineage(operation="train", history=history))
    return directory


def change_manifest(directory: Path, **changes: Any) -> Manifest:
    """Rewrites some fields of a checkpoint's manifest, and its seal."""
    manifest = seal(read_manifest(directory).model_copy(update=changes))
    write_file(directory / MANIFEST_NAME, manifest.model_dump_json(indent=1).encode())
    return manifest


def load_started(folder: Path, *overrides: str, **where: Any) -> Schedule:
    """The schedule BASE with overrides that give its `start`."""
    return load_schedule(file_of(folder, TEXT), overrides, **({"runs_dir": folder / "runs"} | where))
