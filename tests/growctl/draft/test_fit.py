"""A drafted schedule loads, comes close to the wish, fits its devices, and gives `growctl plan` nothing to warn of."""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from growctl.draft.fit import drafted
from growctl.draft.recipe import DECAY_SHARE, Draft, Wish
from model.errors import UserError
from tests.growctl.draft.test_sizes import bases, parameters

wishes = st.tuples(
    parameters,
    bases,
    st.none() | st.floats(6, 75),
    st.sampled_from([None, 1, 2, 3, 6, 8, 32]),
    st.sampled_from([None, "rtx-4090", "a100-40gb", "h100", "b200"]),
    st.booleans(),
)
"""Parameters, their multiple of the base, tokens per parameter, GPUs and their kind, and whether growth deepens."""

SMALL = "Evaluations add "
"""How a warning begins that the smallest ladders get: a validation set is large beside so little training."""


@pytest.fixture(autouse=True)
def without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans by what the schedule says, on every machine."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.slow
@settings(max_examples=12)
@given(wishes)
def test_whatever_can_be_wished_for_is_planned_without_a_warning(wish: tuple[Any, ...]) -> None:
    params, span, ratio, gpus, device, grow_depth = wish
    sizes = {"base": span and round(params / span), "tokens": ratio and round(params * ratio)}
    try:
        *_, plan = drafted(Wish(params=params, gpus=gpus, device=device, grow_depth=grow_depth, **sizes), "mine")
    except UserError:
        assume(False)  # bases that no width can span, and too small devices: other tests cover both
    assert [warning for warning in plan.warnings if not warning.startswith(SMALL)] == []
    assert plan.trunk[-1].num_parameters == pytest.approx(params, rel=0.03)
    total = sum(stage.budget_tokens for stage in plan.trunk)
    assert total == pytest.approx(sizes["tokens"] or 20 * params, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "gpus", "device", "sharding", "optimizer"),
    [(10_000_000_000, 8, "h100", (3, "none"), "muon"), (3_000_000_000, 1, "a100-40gb", (3, "optimizer"), "adamw")],
)
def test_what_exceeds_a_device_is_sharded_offloaded_or_trained_with_muon(params, gpus, device, sharding, optimizer):
    draft, _, plan = drafted(Wish(params=params, gpus=gpus, device=device), "s")
    assert (draft.sharding, draft.optimizer, plan.warnings) == (sharding, optimizer, ())


@pytest.mark.slow
def test_what_does_not_fit_at_all_is_rejected() -> None:
    with pytest.raises(UserError, match=r"^--params 15B: does not fit on 1 x h100, .*, more --gpus"):
        drafted(Wish(params=15_000_000_000, gpus=1, device="h100"), "s")


def test_controls_are_the_best_size_from_scratch_and_cost_what_no_run_has_trained_before() -> None:
    draft, _, plan = drafted(Wish(params=30_000_000), "s")
    assert isinstance(draft, Draft)
    last = [control.total.flops for control in plan.controls if control.kind == "tokenformer-scratch"]
    smaller = [control for control in plan.controls if control.kind == "best-scratch"]
    assert [each.largest.num_parameters for each in smaller] == [stage.num_parameters for stage in plan.trunk[:-1]]
    trained = sum(last) + sum(each.total.flops for each in smaller) - plan.trunk[0].flops  # the ladder's own
    trained -= sum(last[:-1]) * (1 - DECAY_SHARE)
    assert draft.controls_cost == pytest.approx(trained / sum(stage.flops for stage in plan.trunk), rel=0.02)
