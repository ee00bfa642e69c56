"""What `growctl show` says of a checkpoint: sizes by generation, lineage and cost; in short what other commands do.

Reads manifests, never a tensor. Imports no torch.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from growctl.text.formatting import byte_count, duration, scientific, short_count
from growctl.text.section import Cell, Column, Facts, Paragraph, Part, Section, Table
from model.config_growth import one_if_equal
from model.decoder_config import DecoderBlockConfig
from model.parameter_names import PartName
from model.precision import Precision
from model.shapes import ModelConfig, num_parameters, parameter_shapes
from model.tokenformer_config import PATTENTIONS, BlockConfig, Routing, TokenformerConfig
from stages.checkpoint.lineage import Lineage, TrainingCost, TrainingRecord
from stages.checkpoint.manifest import Manifest, TextFacts, read_manifest
from stages.counted import counted
from stages.metrics_lines import SourceEvaluation

DECODER_PARTS = ("heads", "ffn")
"""The parts of a decoder's block that grow."""


@dataclass(frozen=True)
class GenerationFacts:
    """What one growth added."""

    number: int
    tokens: dict[str, int | list[int]]
    """Parameter tokens by Pattention or, of a decoder, `heads` of keys and values and units of the `ffn`: one number if
    all layers have as many, else one for each layer."""
    new_layers: list[int]
    """The layers that it added, by position from 0; of the base, those that the model began with."""
    num_parameters: int
    key_ramp: float
    """The factor on its keys; below 1 while its ramp is not finished."""
    routing: Routing | None
    """Which of its tokens a data token reads; null: all."""


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint: its sizes, where it comes from, what it cost. Unknown values are null."""

    path: Path
    kind: Literal["parameters", "engine"]
    """`parameters`: what stages pass on. `engine`: DeepSpeed's own files, to resume within a stage."""
    step: int
    """Optimizer steps done in the stage that wrote it; 0 if it was just expanded or imported."""
    num_layers: int
    model: dict[str, Any]
    """The model's settings, as in its manifest, without the layers; its keys depend on `family`."""
    num_parameters: int
    """All parameters; the tied embedding counts once."""
    other_parameters: int
    """Parameters outside the layers: embedding, final norm, and the head if it is untied."""
    generations: tuple[GenerationFacts, ...]
    validation_loss: float | None
    """Nats per token, measured when the checkpoint was made; else the last one measured before."""
    by_source: dict[str, SourceEvaluation]
    """The sources of the mixture that it was trained on, by name; empty if there is none, or if it is unknown."""
    text: TextFacts
    precision: Precision | None
    """The precision that its stage trained in."""
    samples_seen: int
    """Training sequences consumed since the start of the run."""
    seed: int
    dataset_fingerprint: str | None
    tokenizer_sha256: str | None
    cost: TrainingCost | None
    """What it cost, from the first step of its first ancestor on, without repeated work."""
    lineage: Lineage
    num_files: int
    bytes: int
    """The size of its files."""


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that `expand`, `shrink` or `import` has written."""

    path: Path
    num_parameters: int
    text: TextFacts
    lineage: Lineage
    """The checkpoint that it was made from, and how."""

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> "WrittenCheckpoint":
        """The checkpoint in `path`."""
        return cls(path, num_parameters(manifest.model), manifest.text, manifest.lineage)


def read_facts(checkpoint: Path, manifest: Manifest | None = None) -> CheckpointFacts:
    """The facts about a checkpoint. `manifest`: a changed one, to describe instead of the checkpoint's own.

    Raises CheckpointError if the checkpoint's manifest is missing or damaged.
    """
    manifest = manifest or read_manifest(checkpoint)
    model, size = manifest.model, num_parameters(manifest.model)
    record = manifest.lineage.training or TrainingRecord()
    generations = _generations(model)
    same = ("kind", "step", "text", "precision", "samples_seen", "seed", "dataset_fingerprint", "tokenizer_sha256")
    return CheckpointFacts(
        **{name: getattr(manifest, name) for name in (*same, "lineage")},
        path=checkpoint,
        num_layers=model.num_layers,
        model=model.model_dump(mode="json", exclude={"blocks", "num_layers"}),
        num_parameters=size,
        other_parameters=size - sum(generation.num_parameters for generation in generations),
        generations=generations,
        validation_loss=record.last_loss,
        by_source=record.by_source or {},
        cost=manifest.lineage.cost,
        num_files=len(manifest.files),
        bytes=manifest.num_bytes,
    )


def _generations(model: ModelConfig) -> tuple[GenerationFacts, ...]:
    parameters: Counter[int] = Counter()
    for name, shape in parameter_shapes(model).items():
        if part := PartName.parse(name):
            parameters[part.generation] += math.prod(shape)
    layers = [_sizes(block) for block in model.blocks]
    pattentions = model.pattentions() if isinstance(model, TokenformerConfig) else ()
    generations = [generation for _, pattention in pattentions for generation in pattention.generations]
    return tuple(
        GenerationFacts(
            number=number,
            tokens={name: one_if_equal([layer[name].get(number, 0) for layer in layers]) for name in layers[0]},
            new_layers=[layer for layer, block in enumerate(model.blocks) if block.generation == number],
            num_parameters=parameters[number],
            key_ramp=min((g.key_ramp for g in generations if g.number == number), default=1.0),
            routing=next((g.routing for g in generations if g.number == number and g.routing), None),
        )
        for number in sorted(parameters)
    )


def _sizes(block: BlockConfig | DecoderBlockConfig) -> dict[str, dict[int, int]]:
    """What each part of a block has of each generation: parameter tokens, or heads of keys and values and FFN units."""
    if isinstance(block, DecoderBlockConfig):
        return {name: {rows.number: rows.count for rows in getattr(block, name)} for name in DECODER_PARTS}
    return {name: {g.number: g.num_tokens for g in p.generations} for name, p in block.pattentions().items()}


def section(facts: CheckpointFacts) -> Section:
    """The facts about a checkpoint for people."""
    parts: list[Part] = [Facts((*fact_rows(facts), *cost_rows(facts)))]
    if facts.generations:
        header, *rows = generation_rows(facts)
        columns = [Column(heading, is_number=number > 0) for number, heading in enumerate(header)]
        parts.append(Table.of("generations", columns, [list(map(Cell, row)) for row in rows]))
    parts.append(Paragraph("lineage, oldest first", "heading"))
    parts.append(Facts(tuple(lineage_rows(facts))))
    return Section("checkpoint", str(facts.path), tuple(parts))


def fact_rows(facts: CheckpointFacts) -> list[tuple[str, str]]:
    """Labels and words: what the checkpoint is."""
    model, image = facts.model, facts.model.get("image")
    reads = f"vocabulary {model['vocab_size']:,}"
    if image:
        reads = f"{model['vocab_size']:,} classes of images of {image['size']} x {image['size']} pixels"
    rows = {
        "parameters": f"{short_count(facts.num_parameters)} ({facts.num_parameters:,})",
        "model": f"{model['family']}, {counted(facts.num_layers, 'layer')}, width {model['hidden_size']}, "
        f"{counted(model['num_heads'], 'head')}, {reads}",
    }
    if window := model.get("attention_window"):
        full = f"; to all before in one of {every} layers" if (every := model.get("full_attention_every")) else ""
        rows["attention"] = f"to itself and {counted(window - 1, 'token')} before{full}"
    if facts.validation_loss is not None:
        rows["validation"] = f"{facts.validation_loss:.5g} nats per {'image' if image else 'token'}"
    rows |= dict(source_rows(facts))
    rows["precision"] = facts.precision or "unknown"
    rows["dataset"] = _short(facts.dataset_fingerprint)
    if not image:
        rows["tokenizer"] = _short(facts.tokenizer_sha256)
    if facts.text.begin_of_text is not None:
        rows["tokenizer"] += f"; each text begins with {facts.text.begin_of_text}"
    if facts.text.context_length is not None:
        rows["context"] = counted(facts.text.context_length, "token")
    kind = "one file per parameter" if facts.kind == "parameters" else "an engine checkpoint, to resume its stage"
    rows["files"] = f"{facts.num_files} ({byte_count(facts.bytes)}), {kind}"
    if facts.lineage.imported and facts.lineage.imported.check:
        rows["original"] = facts.lineage.imported.check
    return list(rows.items())


def source_rows(facts: CheckpointFacts) -> list[tuple[str, str]]:
    """Labels and words: each source of the mixture that the checkpoint was trained on."""
    losses = {name: math.nan if (loss := source["loss"]) is None else loss for name, source in facts.by_source.items()}
    return [
        (f"source {name}", f"read {source['epochs']:.3g} times, validation loss {losses[name]:.5g} nats per token")
        for name, source in facts.by_source.items()
    ]


def cost_rows(facts: CheckpointFacts) -> list[tuple[str, str]]:
    """Labels and words: what its training cost. A row without a label continues the one before."""
    cost = facts.cost
    if cost is None:
        return [("cost", "unknown: the checkpoint has no history")]
    work = f"{short_count(cost.tokens)} tokens in {counted(cost.steps, 'step')}"
    row = f"{scientific(cost.flops.total)} FLOPs, {work}, {duration(cost.device_seconds)} of device time"
    missing = ("", "incomplete: the cost of an imported ancestor is not known and not included")
    return [("cost", row)] if cost.complete else [("cost", row), missing]


def generation_rows(facts: CheckpointFacts) -> list[tuple[str, ...]]:
    """The rows of the table of generations, its header first."""
    layers: set[int] = set()
    is_decoder = facts.model["family"] == "decoder"
    parts = (DECODER_PARTS[:1], DECODER_PARTS[1:]) if is_decoder else (PATTENTIONS[:-1], PATTENTIONS[-1:])
    words = ("K/V heads", "FFN units") if is_decoder else ("Q/K/V/O tokens", "FFN tokens")
    rows: list[tuple[str, ...]] = [("generation", "new layers", *words, "parameters", "ramp")]
    for generation in facts.generations:
        layers |= set(generation.new_layers)
        tokens = (_token_range(generation, names, layers) for names in parts)
        ramp = "" if generation.key_ramp == 1 else f"{generation.key_ramp:.3g}"
        size, new_layers = short_count(generation.num_parameters), str(len(generation.new_layers) or "")
        read = f" ({routing.read} of {routing.groups} groups read)" if (routing := generation.routing) else ""
        rows.append((f"{generation.number}{read}", new_layers, *tokens, size, ramp))
    return [*rows, ("other", "", "", "", short_count(facts.other_parameters), "")]


def _token_range(generation: GenerationFacts, pattentions: Sequence[str], layers: set[int]) -> str:
    """The tokens in each of `pattentions`, over those layers: one number, or the smallest and the largest."""
    tokens = [generation.tokens[name] for name in pattentions]
    counts = {count for part in tokens for count in ([part] if isinstance(part, int) else [part[i] for i in layers])}
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def lineage_rows(facts: CheckpointFacts) -> list[tuple[str, str]]:
    """Each operation of the history, oldest first: its name, and the size, the cost and the place after it."""
    rows: list[tuple[str, str]] = []
    for entry in facts.lineage.history:
        made = f", in {entry.made_in}" if entry.made_in else ""
        size, flops = short_count(entry.num_parameters), scientific(entry.cost.flops.total)
        rows.append((entry.operation, f"{size} parameters, {flops} FLOPs so far{made}"))
    return rows or [(facts.lineage.operation, "what came before is not recorded")]


def _short(digest: str | None) -> str:
    return f"{digest[:12]}..." if digest else "unknown"
