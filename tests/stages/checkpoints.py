"""Small `parameters` checkpoints for tests, with Adam moments as after training."""

from pathlib import Path
from typing import Any

import torch

from model.growth import ParameterState
from model.initialization import build_model
from model.shapes import ModelConfig
from model.tokenformer_config import TokenformerConfig, tokenformer_config
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import Manifest
from stages.checkpoint.parameters import write_parameter

STEPS = {"generation-0-decay": 11, "generation-0-no-decay": 11}


def small_config(width: int = 16, num_heads: int = 1, **changes) -> TokenformerConfig:
    sizes = {"num_layers": 2, "attention_tokens": 5, "ffn_tokens": 10}
    return tokenformer_config(**(sizes | changes), vocab_size=31, hidden_size=width, num_heads=num_heads)


def write_checkpoint(directory: Path, config: ModelConfig | None = None, **changes: Any) -> Manifest:
    """A whole checkpoint in `directory`, at step 11 of its stage, with `changes` to its manifest."""
    config = config or small_config()
    generator = torch.Generator().manual_seed(5)
    with whole_directory(directory) as staging:
        files = {}
        for name, parameter in build_model(config, seed=0).named_parameters():
            first, second = (torch.randn(parameter.shape, generator=generator) * 0.01 for _ in range(2))
            file, files[file] = write_parameter(staging, name, ParameterState(parameter, first, second.square()))
        values: dict[str, Any] = {
            "kind": "parameters",
            "model": config,
            "step": 11,
            "group_steps": STEPS,
            "samples_seen": 44,
            "seed": 0,
            "dataset_fingerprint": "d" * 64,
            "tokenizer_sha256": "e" * 64,
            "files": files,
            "lineage": Lineage(operation="train"),
        }
        return finish_directory(directory, Manifest(**(values | changes)))
