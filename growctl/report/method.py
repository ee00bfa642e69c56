"""How the report computes its figures, for readers who want to check them."""

from growctl.text.section import Paragraph, Section

_COUNTED = (
    ("FLOPs",
     "They count the matrix products of training, computed from the model's structure. A multiply-add counts as 2, and "
     "the backward pass costs twice the forward pass. Attention counts as the full T x T, although the causal mask "
     "needs only half. Element-wise operations are not counted."),
    ("Cumulative cost",
     "It includes every stage so far: the first size is not free. It also includes the checkpoint that a run started "
     "from, if its cost is known. FLOPs that were spent again after an interruption are shown separately, for ladders "
     "and controls alike, because they do not depend on the training method. Evaluations are recorded, but are not "
     "part of the cost."),
    ("Device time",
     "It is wall time times devices, from the start of each attempt. It includes start-up, evaluation, replayed steps "
     "and failed attempts."),
    ("Perplexity",
     "It is measured at the end of a stage, on the validation data, in fp32 from the master weights. The jump is the "
     "change in loss that the growth itself causes, in nats per token (a nat is a unit of the natural logarithm): 0 if "
     "it preserves the function."),
    ("Equal loss",
     "The report compares the FLOPs at which the controls reach the ladder's final loss. These are read off the "
     "controls' lower convex envelope: the loss is linear in the logarithm of the FLOPs between two measured points, "
     "without extrapolation. Only finished controls count, and only if they were trained like the ladder: same data, "
     "seed, model, context, batch, precision, optimizer, learning rate and validation windows, each with its own "
     "decay. Where the ladder's stages weight the sources of a mixture differently, its controls change these weights "
     "at the same shares of their own samples. The validation loss of a mixture always weights its sources by "
     "data.mixture."),
    ("What each loss costs",
     "The same in FLOPs, device time, money and energy, for every finished model whose learning rate has decayed. Each "
     "cost includes the start checkpoint, every stage before and reused work, and leaves out replayed work. A cost of "
     "which any part is not known is not known."),
    ("The best size from scratch",
     "It trains every size of the ladder alone for the same FLOPs and puts all of them under one envelope. A small "
     "model trained longer may beat both the ladder and the largest size."),
    ("Releases",
     "A release is a branch from a stage's end on which the learning rate decays, so that its size is a finished model "
     "too. Its cumulative cost is that of the stages up to its own, and of the branch. The price of a family is the "
     "cost of all stages and branches, against the sum of what the loss of each finished model costs from scratch."),
    ("The chart of compute against perplexity",
     "Large marks are the ends of stages and runs, and diamonds those of releases. Lines and small dots are "
     "evaluations during training, before the learning rate has decayed: a full run with that budget would reach a "
     "lower loss."),
    ("Noise",
     "Differences smaller than those between seeds are not significant, and one seed is weak evidence."),
)  # fmt: skip


def section() -> Section:
    """What each figure is, and how it is computed."""
    parts = [part for name, text in _COUNTED for part in (Paragraph(name, "heading"), Paragraph(text))]
    return Section("method", "How the figures are computed", tuple(parts), in_terminal=False, is_detail=True)
