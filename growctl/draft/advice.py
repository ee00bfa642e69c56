"""Finds the schedule that a law predicts to end lowest, grown or from scratch, for `growctl init --law`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from growctl.draft.recipe import Draft, LawWish
from growctl.draft.sizes import Shape, Size, Vocabularies, model_of, size_near
from growctl.draft.text_source import BY_SIZE, text_source
from growctl.find_checkpoint import find_checkpoint
from growctl.law.formula import Floats, Interval, Law, Paths, Segment, read_law
from growctl.schedule.start_block import BaseBlock, StartBlock, describe_start
from model.errors import UserError
from model.flops import training_flops_per_token
from model.shapes import model_shape, num_parameters
from stages.corpus.prepared import given_dataset
from stages.data.dataset import read_dataset_manifest
from stages.data.spec import DataSpec

_TENTHS = tuple(number / 10 for number in range(10))


class _Plan(NamedTuple):
    """Sizes with their data tokens from now on, and the whole path of the model, start checkpoint included."""

    stages: list[tuple[Size, float]]
    path: list[Segment]
    flops: float
    """Of the whole path."""


class _Search:
    """The plans for a wish, and what the law says of them."""

    def __init__(self, law: Law, wish: LawWish, base: BaseBlock | None):
        own, self.law, self.flops, self.base = law.recipe, law, wish.flops, base
        self.shape = Shape(1, own.hidden_size, own.num_heads, own.sequence_length, own.vocab_size)
        layers = range(own.layers[0], own.layers[1] + 1)
        least, most = law.ranges["parameters"]
        if wish.params and (count := self.segment(Size(1, 1, wish.params), 0).counted(law.counts)) < 0.99 * least:
            found = f"parameters {count:,} (fitted: {least:,.0f} to {most:,.0f})"
            raise UserError(f"--params {wish.params:,}: outside the fitted range: {found}")
        known = [size_near(self.shape, Vocabularies(), n, wish.params, None) for n in layers if wish.params]
        self.firsts = list[Size]()
        if base:
            tokens = model_shape(base.model).get("attention_tokens")
            self.firsts = [self.size(base.model.num_layers, tokens if isinstance(tokens, int) else 1)]
            first, cost = self.firsts[0], (base.tokens or 0) * self.cost(self.firsts[0])
            if first.num_parameters != base.num_parameters or not math.isclose(base.flops or -1, cost, rel_tol=0.01):
                raise UserError(f"--from {wish.start}: must have the law's shape, a known cost, and one size all along")
        counts = {max(8, 8 * round(self.shape.width * 2 ** (number / 2) / 8)) for number in range(-6, 9)}
        counts |= {size.attention_tokens for size in (*known, *self.firsts)}
        sizes = [self.size(n, count) for n in layers for count in counts]
        self.within = [size for size in sizes if least <= self.segment(size, 0).counted(law.counts) <= most]
        self.sizes = list(dict.fromkeys([*known, *self.firsts, *self.within]))
        self.ends = known or self.within
        self.trained_on = [size for size in self.firsts if size in known or not known]

    def size(self, num_layers: int, tokens: int) -> Size:
        """The size with `tokens` in each of Q, K, V and O."""
        size = Size(num_layers, tokens, 0)
        return replace(size, num_parameters=num_parameters(model_of(self.shape, Vocabularies(), size)))

    def segment(self, size: Size, tokens: float) -> Segment:
        """Training at a size, as the law sees it."""
        embedding = self.shape.vocab_size * self.shape.width
        return Segment(size.num_parameters, embedding, size.num_layers, (size.attention_tokens,), tokens)

    def cost(self, size: Size) -> float:
        """Training FLOPs per data token."""
        model = model_of(self.shape, Vocabularies(), size)
        return training_flops_per_token(model, self.shape.sequence_length).total

    def plan(self, sizes: Sequence[Size], shares: Sequence[float], base: BaseBlock | None) -> _Plan:
        """Trains `sizes` for shares of the FLOPs, from scratch or from a start checkpoint of the first one."""
        stages = [(size, share * self.flops / self.cost(size)) for size, share in zip(sizes, shares, strict=True)]
        path = [self.segment(*stage) for stage in stages]
        path[0] = replace(path[0], tokens=path[0].tokens + (base.tokens or 0 if base else 0))
        return _Plan([stage for stage in stages if stage[1]], path, self.flops + (base.flops or 0 if base else 0))

    def alone(self, sizes: Sequence[Size], base: BaseBlock | None) -> list[_Plan]:
        """Each size for all the FLOPs."""
        return [self.plan([size], [1.0], base) for size in sizes]

    def grown(self) -> list[_Plan]:
        """Grown once, with shares in tenths, or twice, in fifths."""
        after = {a: [b for b in self.sizes if self._grows(a, b)] for a in self.sizes}
        chains: list[tuple[Size, ...]] = [(a, b) for a in self.firsts or self.sizes for b in after[a]]
        chains += [(*chain, c) for chain in chains for c in after[chain[-1]]]
        return [
            self.plan(chain, (*shares, 1 - sum(shares)), self.base)
            for chain in chains
            if chain[-1] in self.ends
            for shares in product(_TENTHS[:: len(chain) - 1], repeat=len(chain) - 1)
            if sum(shares) < 0.95 and all(shares[bool(self.base) :])
        ]

    def _grows(self, small: Size, large: Size) -> bool:
        more = small.num_layers <= large.num_layers and small.attention_tokens <= large.attention_tokens
        return more and small != large and self.segment(small, 0).axis(self.segment(large, 0)) in self.law.axes

    def best(self, plans: Sequence[_Plan]) -> _Plan | None:
        """The plan with the lowest predicted loss of those inside the fitted range that grow before the learning rate
        decays; None without one."""
        late = self.law.recipe.decay
        plans = [plan for plan in plans if plan.stages[-1][1] >= late * sum(tokens for _, tokens in plan.stages)]
        if not (inside := [plan for plan in plans if not self.law.outside(*plan[1:])]):
            return None
        paths = Paths([plan.path for plan in inside], [plan.flops for plan in inside], self.law.counts)
        return inside[int(np.argmin(self.law.formula.losses(self.law.c_MP[:1], paths)[0]))]

    def multiplier(self, loss_M: Floats) -> Interval:
        """The FLOPs that the strongest opponent needs for a loss, over ours; at most 100."""

        needs_M = np.full(len(loss_M), np.inf)
        for sizes, paid in ((self.ends, 0), (self.trained_on, self.base.tokens or 0 if self.base else 0)):
            for size in sizes:
                point_21 = np.array([[self.segment(size, 0).counted(self.law.counts)], [self.cost(size)]])
                cost_M1 = replace(self.law.formula, frontier_2G=point_21).cost(self.law.c_MP, loss_M[:, None])
                needs_M = np.minimum(needs_M, cost_M1[:, 0] - paid * self.cost(size))
        return Interval.of(np.clip(needs_M / self.flops, 0.0, 100.0))


def advised_draft(wish: LawWish, runs_dir: Path) -> Draft:
    """The best schedule for a wish, with what the law says of it. Raises UserError outside the fitted range."""
    law, base = read_law(Path(wish.law)), None
    if wish.start:
        path = find_checkpoint(wish.start, runs_dir, tell=lambda line: None).absolute()
        base = describe_start(StartBlock(checkpoint=str(path)), runs_dir)
        wish = wish.model_copy(update={"start": base.path})
    search = _Search(law, wish, base)
    rivals = search.alone(search.ends, None) + search.alone(search.trained_on, base)
    rival, grown = search.best(rivals), search.best(search.grown())
    if rival is None:
        raise UserError(f"--law {wish.law}: outside the fitted range: {law.outside(*rivals[-1][1:])}")
    loss = law.interval(*rival[1:])
    plan, remark = rival, "Not known whether growing pays: no ladder to this size lies inside the fitted range."
    if grown:
        ladder, multiplier = law.interval(*grown[1:]), search.multiplier(law.losses(*grown[1:]))
        opponent = "this size from scratch" if wish.params else "the best size from scratch"
        opponent += " or the checkpoint, trained further," if search.trained_on else ""
        needs = f"{opponent} needs {multiplier} times these FLOPs"
        kind = "The checkpoint, trained further," if rival.flops > wish.flops else "From scratch, this schedule"
        remark = f"Do not grow. {kind} should end at {loss}. The best ladder should end at {ladder}, for which {needs}."
        if multiplier.low > 1 and ladder.estimate < loss.estimate:
            plan, loss, remark = grown, ladder, f"This schedule should end at {ladder}, for which {needs}."
    least = min(size.num_parameters for size in search.ends) if wish.params else 0
    smaller = search.best(search.alone([size for size in search.within if size.num_parameters < least], None))
    if smaller and (below := law.interval(*smaller[1:])).estimate < loss.estimate:
        size = smaller.path[-1].num_parameters
        remark += f" A smaller size, {size:,} parameters, should end lower from scratch: at {below}."
    remark += f" {law.caution}" if law.caution else ""
    sizes, tokens = zip(*plan.stages, strict=True)
    choices = map(text_source, [wish.data] if wish.data else BY_SIZE)
    source = next(each for each in choices if wish.data or sum(tokens) <= each.lasts)
    dataset, fingerprint = given_dataset(DataSpec(source=source.source)), law.recipe.dataset_fingerprint
    texts = {read_dataset_manifest(dataset).fingerprint if dataset else None, base and base.dataset_fingerprint}
    if others := texts - {None, fingerprint}:
        raise UserError(f"--law {wish.law}: fitted on the text {fingerprint}, and this one is {others.pop()}")
    if fingerprint not in texts:
        remark += f" Whether this text is the law's ({fingerprint[:12]}) is not known."
    return Draft(
        wish=wish,
        source=source,
        sequence_length=search.shape.sequence_length,
        batch_size=law.recipe.batch_size,
        train_tokens=list(map(round, tokens)),
        shape=search.shape,
        sizes=list(sizes),
        recipe=law.recipe,
        start=base.path if base and plan.flops > wish.flops else None,
        grows=plan is grown,
        remark=remark,
    )
