"""A `parameters` checkpoint in, a larger one out. Append-only: what is there is hard-linked, what is new is written."""

from collections.abc import Callable
from pathlib import Path

from model.config import TokenformerConfig, TransformerConfig, grow_config, num_parameters
from model.growth import added_parameters, draw_added
from stages.checkpoint import write_parameter
from stages.manifest import (
    CheckpointError,
    Lineage,
    Manifest,
    finish_directory,
    link_or_copy,
    manifest_hash,
    verify_checkpoint,
    whole_directory,
)


def ffn_tokens_in_proportion(config: TokenformerConfig | TransformerConfig, attention_tokens: int) -> int:
    """The FFN tokens that keep the model's own ratio of FFN to query tokens when `attention_tokens` are added."""
    if not isinstance(config, TokenformerConfig):
        return 0
    block = config.blocks[0]
    return round(attention_tokens * block.ffn.num_tokens / block.query.num_tokens)


def expand(
    source: Path,
    output: Path,
    *,
    attention_tokens: int,
    ffn_tokens: int | None = None,
    seed: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Writes `output`, the checkpoint `source` with one more generation of parameter tokens, and returns its manifest.

    `attention_tokens` are added to each of Q, K, V and O of every layer, `ffn_tokens` to each FFN (None: in the model's
    own proportion). The function does not change: new values are random, new keys enter at ramp 0. Old values and
    moments are the same files; new moments are zeros, in groups whose step starts at 0. `seed` defaults to the
    checkpoint's. `on_progress(done, total)` counts new parameters.

    Raises CheckpointError where `source` is not a whole `parameters` checkpoint or `output` exists, and ValueError
    where the growth itself is not possible. Nothing half-written is left behind.
    """
    source, output = Path(source), Path(output)
    parent = verify_checkpoint(source)
    if parent.kind != "parameters":
        raise CheckpointError(
            f"{source} is an engine checkpoint, good only for resuming its stage; expand a final/ or initial/ directory"
        )
    if ffn_tokens is None:
        ffn_tokens = ffn_tokens_in_proportion(parent.model, attention_tokens)
    model = grow_config(parent.model, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens)
    assert isinstance(parent.model, TokenformerConfig)
    seed = parent.seed if seed is None else seed
    total = len(added_parameters(parent.model, model))
    with whole_directory(output) as staging:
        files = dict(parent.files)
        for name in parent.files:
            link_or_copy(source / name, staging / name)
        for done, (name, state) in enumerate(draw_added(parent.model, model, seed), start=1):
            file, files[file] = write_parameter(staging, name, state)
            if on_progress:
                on_progress(done, total)
        details = {
            "attention_tokens": attention_tokens,
            "ffn_tokens": ffn_tokens,
            "seed": seed,
            "num_parameters_before": num_parameters(parent.model),
            "num_parameters": num_parameters(model),
        }
        lineage = Lineage(operation="expand", parent=manifest_hash(source), details=details)
        manifest = parent.model_copy(update={"model": model, "step": 0, "files": files, "lineage": lineage})
        finish_directory(output, manifest)
    return manifest
