"""How `growctl verify` shows two models of different depths."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from growctl.runs.verify import section
from growctl.text.terminal import print_sections
from model.config import PATTENTIONS
from stages.checkpoint.lineage import GrowthRecord
from stages.grow.comparison import ComparedLayer, ComparedModel, Comparison, Descent, GenerationGradients

OLD_SHARE, NEW_SHARE = (dict.fromkeys(PATTENTIONS, share) for share in (0.0, 1.0))


def shown(*layers: tuple[int | None, int | None], waiting: int = 15) -> list[str]:
    """The lines of a comparison after a growth in depth, with `layers` as positions in OLD and NEW."""
    old = {place: float(place + 1) for place, _ in layers if place is not None}
    new = {place: old.get(known, 0.5) for known, place in layers if place is not None}  # type: ignore[arg-type]
    comparison = Comparison(
        dtype="float64", num_sequences=1, context=8, dataset=Path("text"), largest_logit=1.0, largest_difference=0.0,
        mean_difference=0.0, gradient_ramp=None, lineage=Descent("expand", GrowthRecord(preserves=True, seed=0), 9, 9),
        old=ComparedModel(Path("old"), 1000, 2.0, tuple(old[i] for i in sorted(old))),
        new=ComparedModel(Path("new"), 2000, 2.0, tuple(new[i] for i in sorted(new))),
        layers=tuple(ComparedLayer(*places) for places in layers),
        new_score_shares=tuple(
            OLD_SHARE if known is not None else NEW_SHARE for known, place in layers if place is not None
        ),
        gradients=(GenerationGradients(0, 60, 0, 0), GenerationGradients(1, 30, 15, waiting)),
        jump=0.0, relative_difference=0.0, tolerance=1e-6, verdict="preserved", breaks_promise=False,
    )  # fmt: skip
    console = Console(file=StringIO(), width=80)
    print_sections([section(comparison)], console)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, written.splitlines())) <= 80
    return [" ".join(line.split()) for line in written.splitlines()]


def test_layers_stand_side_by_side_with_their_positions_in_both_models():
    lines = shown((0, 0), (None, 1), (1, 2))
    start = lines.index("OLD NEW OLD NEW query key value projection ffn")
    assert lines[start + 1 : start + 4] == [
        "0 0 1 1 0.0% 0.0% 0.0% 0.0% 0.0%",
        "- 1 - 0.5 100.0% 100.0% 100.0% 100.0% 100.0%",
        "1 2 2 2 0.0% 0.0% 0.0% 0.0% 0.0%",
    ]


def test_tokens_of_new_layers_are_expected_to_wait_for_a_gradient():
    words = " ".join(shown((0, 0), (None, 1)))
    assert "generation 1: 15 of 30 tokens, 15 of them in new layers, which have one from the second step on" in words
    assert "in new layers" not in " ".join(shown((0, 0), (None, 1), waiting=0))
