"""Formats the result of `growctl verify`: tables of 80 columns."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from growctl.text.colours import BAD, FAINT
from growctl.text.first_use import FirstUse
from growctl.text.formatting import policy_words, short_count
from model.config import PATTENTIONS
from stages.counted import counted

if TYPE_CHECKING:
    from rich.console import Console

    from stages.grow.comparison import Comparison, Descent, GenerationGradients

RMS_HEADERS = ("RMS\nOLD", "RMS\nNEW")


def print_comparison(old: Path, new: Path, dataset: Path, comparison: "Comparison", console: "Console") -> None:
    """Prints the comparison. Only paths may be wider than 80 columns."""
    from rich.table import Table
    from rich.text import Text

    for name, path, measured in (("OLD", old, comparison.old), ("NEW", new, comparison.new)):
        parameters = f"  ({short_count(measured.num_parameters)} parameters)"
        console.print(Text.assemble((name, "bold"), f"  {path}", (parameters, FAINT)), soft_wrap=True)

    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    words = FirstUse()
    for label, text in _facts(dataset, comparison):
        facts.add_row(label, Text(words.explained(text)))
    console.print(facts)

    console.print()
    title = "residual stream after each block" + (
        "; share of the score mass on new tokens" if comparison.new_score_shares else ""
    )
    console.print(Text(title, FAINT))
    layers = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    shares = PATTENTIONS if comparison.new_score_shares else ()
    for header in (*_position_headers(comparison), *RMS_HEADERS, *shares):
        layers.add_column(header, justify="right", no_wrap=True, vertical="bottom")
    for row in _layer_rows(comparison):
        layers.add_row(*row)
    console.print(layers)

    console.print()
    style = f"bold {BAD}" if comparison.breaks_promise else "bold"
    console.print(Text.assemble((verdict_of(comparison), style), _verdict_words(comparison)))


def _descent_words(descent: "Descent") -> str:
    shared = f"{descent.shared_files} of OLD's {descent.old_files} files are in NEW"
    if descent.operation is None:
        return f"NEW does not name OLD as its parent; {shared}"
    made = {"train": "trained", "expand": "expanded", "shrink": "shrunk", "import": "imported"}[descent.operation]
    details = descent.details
    how = details.get("operator") or policy_words(details.get("policy", {}), new_layers=details.get("new_layers"))
    promise = {True: ", which preserves the function", False: ", which may change the function", None: ""}
    return f"NEW was {made} from OLD{promise[descent.preserves]}; {f'{how}; ' if how else ''}{shared}"


def _facts(dataset: Path, comparison: "Comparison") -> list[tuple[str, str]]:
    """The facts of a comparison, as (label, text) rows."""
    logits = f"differ by at most {comparison.largest_difference:.1e}, {comparison.mean_difference:.1e} on average"
    loss = f"{comparison.old.loss:.5f} -> {comparison.new.loss:.5f} nats per token"
    return [
        ("lineage", _descent_words(comparison.lineage)),
        ("text", f"{comparison.num_sequences} x {counted(comparison.sequence_length, 'token')} of {dataset.name}"),
        ("logits", f"{logits}; OLD's largest is {comparison.largest_logit:.3g}"),
        ("loss", f"{loss}, a jump of {comparison.jump:+.1e}"),
        *(
            (f"loss on {name}", f"{before:.5f} -> {after:.5f}")
            for (name, before), after in zip(
                (comparison.old.by_source or {}).items(), (comparison.new.by_source or {}).values(), strict=True
            )
        ),
        *_gradient_rows(comparison),
    ]


def _gradient_rows(comparison: "Comparison") -> list[tuple[str, str]]:
    words = [_gradient_words(counts) for counts in comparison.gradients or ()]
    if not words:
        return []
    labels = ["no gradient", *[""] * (len(words) - 1)]
    if comparison.gradient_ramp is not None:
        words[-1] += f" (with ramps raised from 0 to {comparison.gradient_ramp:g}: at 0 there is no gradient)"
    return list(zip(labels, words, strict=True))


def _gradient_words(counts: "GenerationGradients") -> str:
    words = f"generation {counts.generation}: {counts.without_gradient:,} of {counted(counts.num_tokens, 'token')}"
    if not counts.waiting:
        return words
    which = "all" if counts.waiting == counts.without_gradient else f"{counts.waiting:,}"
    return f"{words}, {which} of them in new layers, as expected: from the second step on they have one"


def _position_headers(comparison: "Comparison") -> tuple[str, ...]:
    """One column, or two if a layer that both models have is not at the same position in both."""
    moved = any(None not in (layer.old, layer.new) and layer.old != layer.new for layer in comparison.layers)
    return ("layer\nOLD", "layer\nNEW") if moved else ("layer",)


def _layer_rows(comparison: "Comparison") -> list[list[str]]:
    """One row per layer, then the means of the shares over all layers of NEW."""
    old, new, shares = comparison.old.block_rms, comparison.new.block_rms, comparison.new_score_shares
    num_positions = len(_position_headers(comparison))
    rows = []
    for layer in comparison.layers:
        places = (layer.old, layer.new)
        positions = ["-" if place is None else str(place) for place in places]
        if num_positions == 1:
            positions = [next(position for position in positions if position != "-")]
        rms = ["-" if place is None else f"{of[place]:.5g}" for place, of in zip(places, (old, new), strict=True)]
        share = shares[layer.new] if shares and layer.new is not None else None
        rows.append([*positions, *rms, *([f"{share[name]:.1%}" for name in PATTENTIONS] if share else [])])
    if shares:
        means = [sum(share[name] for share in shares) / len(shares) for name in PATTENTIONS]
        rows.append(["mean", *[""] * (num_positions + 1), *(f"{mean:.1%}" for mean in means)])
    return rows


def verdict_of(comparison: "Comparison") -> Literal["preserved", "changed"]:
    """Whether NEW computes the same function as OLD, in one word."""
    return "preserved" if comparison.preserved else "changed"


def _verdict_words(comparison: "Comparison") -> str:
    share, limit = f"{comparison.relative_difference:.1e}", f"{comparison.tolerance:.0e}"
    words = f": the largest difference is {share} of the largest logit, the limit in {comparison.dtype} is {limit}"
    return words + ("; NEW breaks its policy's promise" if comparison.breaks_promise else "")
