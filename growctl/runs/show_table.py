"""Formats what `growctl show` prints: tables and a tree of 80 columns. Only paths may be wider."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from growctl.runs.show import CheckpointFacts, GenerationFacts
from growctl.text.colours import FAINT
from growctl.text.first_use import FirstUse
from growctl.text.formatting import byte_count, duration, policy_words, scientific, short_count
from model.config import PATTENTIONS
from stages.checkpoint.lineage import HistoryEntry, TrainingCost
from stages.counted import counted, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

MOST_NATS = 700.0
"""The loss above which exp(loss) is more than a float can hold."""

HASH_DIGITS = 12
"""How much of a hash is shown: enough to tell checkpoints apart."""

GUIDE = "├── "
"""What stands before each operation in the tree of the lineage."""

INDENT = 7
"""Width of the column that names the operations in the tree."""


def print_facts(facts: CheckpointFacts, console: "Console") -> None:
    """Prints the facts about a checkpoint."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(str(facts.path), "bold"), soft_wrap=True)
    rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, style="bold")
    rows.add_column(overflow="fold")
    words = FirstUse()
    for label, text in (*fact_rows(facts), *cost_rows(facts)):
        rows.add_row(label, Text(words.explained(text)))
    console.print(rows)

    if facts.generations:
        console.print()
        sizes = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        header, *rows_of_sizes = generation_rows(facts)
        for title in header:
            sizes.add_column(title, justify="right", no_wrap=True)
        for row in rows_of_sizes:
            sizes.add_row(*row)
        console.print(sizes)

    console.print()
    console.print(_tree(facts, console.width - len(GUIDE)))
    for path, count in facts.shared.by_checkpoint.items():
        console.print(f"shares {count} of its {len(facts.manifest.files)} files with {path}", soft_wrap=True)
    if facts.shared.elsewhere:
        console.print(f"{facts.shared.elsewhere} of its files are also linked from elsewhere", soft_wrap=True)


def fact_rows(facts: CheckpointFacts) -> Iterator[tuple[str, str]]:
    """Labels and words: what the checkpoint is."""
    manifest, model = facts.manifest, facts.manifest.model
    kind = {"parameters": "one file per parameter", "engine": "an engine checkpoint, to resume its stage"}[
        manifest.kind
    ]
    num_bytes = byte_count(manifest.num_bytes)
    yield "parameters", f"{short_count(facts.num_parameters)} ({facts.num_parameters:,})"
    yield (
        "model",
        f"{model.family}, {counted(model.num_layers, 'layer')}, width {model.hidden_size}, "
        f"{counted(model.num_heads, 'head')}, vocabulary {model.vocab_size:,}",
    )
    if facts.is_published is not None:
        yield "formula", _formula(facts)
    if (loss := facts.validation_loss) is not None:
        perplexity = f"{math.exp(loss):.4g}" if loss < MOST_NATS else "too large to show"
        yield "validation", f"{loss:.5g} nats per token, perplexity {perplexity}"
    yield from source_rows(facts)
    yield "precision", manifest.precision or "unknown"
    yield "dataset", _short(manifest.dataset_fingerprint)
    yield "tokenizer", _short(manifest.tokenizer_sha256)
    if manifest.text.context_length is not None:
        yield "context", counted(manifest.text.context_length, "token")
    yield "files", f"{len(manifest.files)} ({num_bytes}), {kind}"


def source_rows(facts: CheckpointFacts) -> Iterator[tuple[str, str]]:
    """Labels and words: each source of the mixture that the checkpoint was trained on."""
    for name, (loss, epochs) in facts.by_source.items():
        yield f"source {name}", f"read {epochs:.3g} times, validation loss {loss:.5g} nats per token"


def _formula(facts: CheckpointFacts) -> str:
    if facts.is_published:
        return "the published one: every ramp is finished, and tau is sqrt(n)"
    ramps = [f"{generation.key_ramp:.3g} of generation {generation.number}" for generation in facts.generations]
    unfinished = [ramp for ramp, known in zip(ramps, facts.generations, strict=True) if known.key_ramp < 1]
    if unfinished:
        return f"not yet the published one: the ramp is {', '.join(unfinished)}, and ends at 1; tau follows it"
    return "not the published one: tau is not that of the number of tokens, or generations have their own"


def cost_rows(facts: CheckpointFacts) -> Iterator[tuple[str, str]]:
    """Labels and words: what its training cost. A row without a label continues the one before."""
    cost = facts.manifest.lineage.cost
    if cost is None:
        yield "cost", "unknown: the checkpoint has no history"
        return
    flops, time = cost.flops, duration(cost.device_seconds)
    total, tokens = scientific(flops.total), short_count(cost.tokens)
    yield "cost", f"{total} FLOPs, {tokens} tokens in {counted(cost.steps, 'step')}, {time} of device time"
    parts = {"parameters": flops.parameters, "attention": flops.attention, "head": flops.head}
    yield "", "FLOPs by part: " + ", ".join(f"{name} {scientific(part)}" for name, part in parts.items())
    if not cost.complete:
        yield "", "incomplete: the cost of an imported ancestor is not known and not included"


def generation_rows(facts: CheckpointFacts) -> Iterator[tuple[str, ...]]:
    """The rows of the table of generations, its header first. Layers are shown if a growth has added some."""
    deepened = any(generation.new_layers for generation in facts.generations if generation.number)
    layers: set[int] = set()
    header = ("tokens in Q, K, V, O", "in the FFN", "parameters", "ramp")
    yield "generation", *(["new layers"] if deepened else []), *header
    for generation in facts.generations:
        layers |= set(generation.new_layers)
        ramp = "" if generation.key_ramp == 1 else f"{generation.key_ramp:.3g}"
        tokens = [_tokens(generation, names, layers) for names in (PATTENTIONS[:-1], PATTENTIONS[-1:])]
        new_layers = [str(len(generation.new_layers) or "")] if deepened else []
        yield str(generation.number), *new_layers, *tokens, short_count(generation.num_parameters), ramp
    yield "other", *([""] if deepened else []), "", "", short_count(facts.other_parameters), ""


def _tokens(generation: GenerationFacts, pattentions: tuple[str, ...], layers: set[int]) -> str:
    """The tokens in each of `pattentions`, over those layers: one number, or the smallest and the largest."""
    counts: set[int] = set()
    for name in pattentions:
        tokens = generation.tokens[name]
        counts |= {tokens} if isinstance(tokens, int) else {tokens[layer] for layer in layers}
    return f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"


def _tree(facts: CheckpointFacts, width: int) -> "Tree":
    """The history of the checkpoint in lines of `width`: two or three for each operation, oldest first."""
    from rich.text import Text
    from rich.tree import Tree

    lineage = facts.manifest.lineage
    tree = Tree(Text("lineage, oldest first", "bold"))
    for before, entry in facts.steps_of_history():
        operation = Text.assemble((f"{entry.operation:{INDENT}}", "bold"), _words(before, entry))
        result = [Text(f"{'':{INDENT}}{line}", FAINT) for line in _result(entry, width - INDENT)]
        tree.add(Text("\n").join([operation, *result]))
    if not lineage.history:
        tree.add(Text(_unrecorded(facts)))
    return tree


def lineage_lines(facts: CheckpointFacts) -> list[str]:
    """The tree of the lineage as plain lines, one for each operation."""
    lines = [
        f"{entry.operation}: {_words(before, entry)}; {' '.join(_result(entry, width=0))}"
        for before, entry in facts.steps_of_history()
    ]
    return lines or [_unrecorded(facts)]


def _unrecorded(facts: CheckpointFacts) -> str:
    lineage = facts.manifest.lineage
    parent = f" from a checkpoint with the manifest {_short(lineage.parent)}" if lineage.parent else ""
    return f"{lineage.operation}{parent}; what came before is not recorded"


def _result(entry: HistoryEntry, width: int) -> list[str]:
    """The size, cost, place and hash after an operation: one line, or two if they do not fit into `width`."""
    made = f", in {entry.made_in}" if entry.made_in else ""
    size, digest = f"{short_count(entry.num_parameters)} parameters", _short(entry.hash)
    told = f"{size}, {scientific(entry.cost.flops.total)} FLOPs so far{made},"
    return [f"{told} {digest}"] if len(told) + 1 + len(digest) <= width else [told, digest]


def _words(before: HistoryEntry | None, entry: HistoryEntry) -> str:
    """What an operation did."""
    known: dict[str, Any] = entry.determined_by
    if entry.operation == "train":
        start = before.cost if before else TrainingCost()
        return (
            f"{counted(entry.cost.steps - start.steps, 'step')}, {short_count(entry.cost.tokens - start.tokens)} tokens"
        )
    if entry.operation == "init":
        return f"drawn at random, seed {known.get('seed', 'unknown')}"
    if entry.operation == "shrink":
        dropped = known.get("drop_generations", 1)
        return f"the newest {plural(dropped, 'generation', f'{dropped} generations')} removed"
    if entry.operation == "import":
        return "made by another program"
    policy = known.get("policy")
    # A growth of tokens alone is not determined by `depth`, so its history leaves that out.
    how = known.get("operator") or (policy_words(policy, new_layers=True) if isinstance(policy, dict) else "")
    size = f"{short_count(before.num_parameters)} -> {short_count(entry.num_parameters)}" if before else ""
    return f"{size} ({how}, seed {known.get('seed', 'unknown')})"


def _short(digest: str | None) -> str:
    return f"{digest[:HASH_DIGITS]}..." if digest else "unknown"
