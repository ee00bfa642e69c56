"""The doctor's all-reduce: every rank can compute the expected sum, and wrong sums are detected."""

import sys

import pytest
import torch
import torch.distributed as dist

from stages.probe.all_reduce import PATTERN, all_reduce
from stages.probe.machine import describe
from stages.probe.records import AllReduceSpec

CPU = torch.device("cpu")
SPEC = AllReduceSpec(directory=".", num_elements=3000)


def filled(num_elements: int, rank: int) -> torch.Tensor:
    return (torch.arange(num_elements) % PATTERN + rank).float()


@pytest.fixture
def second_of_two(monkeypatch):
    """Makes this process rank 1 of two, with an all-reduce that the test defines."""
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_backend", lambda: "pretended")
    monkeypatch.setattr(dist, "barrier", lambda: None)

    def reduces_by(reduce):
        monkeypatch.setattr(dist, "all_reduce", reduce)

    return reduces_by


def test_correct_sums_have_no_wrong_elements(second_of_two):
    second_of_two(lambda values: values.add_(filled(SPEC.num_elements, 0)))
    result = all_reduce(SPEC, CPU)
    assert (result.backend, result.num_ranks, result.wrong_elements) == ("pretended", 2, 0)
    assert result.seconds > 0


@pytest.mark.parametrize(
    ("reduce", "wrong"),
    [
        (lambda values: values, 2997),  # the other rank's values are missing: only its zeros give the right sum
        (lambda values: values.mul_(2), 3000),
        (lambda values: values.add_(filled(3000, 0)).view(-1)[7].add_(1), 1),
        (lambda values: values.add_(filled(3000, 0).roll(64)), 3000),  # blocks arrive in the wrong places
    ],
)
def test_wrong_sums_are_counted(second_of_two, reduce, wrong):
    second_of_two(reduce)
    assert all_reduce(SPEC, CPU).wrong_elements == wrong


def test_a_failed_import_of_deepspeed_is_reported_and_torch_still_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.delitem(sys.modules, "stages.engine.deepspeed_api", raising=False)
    facts = describe()
    assert facts.torch == torch.__version__
    assert facts.deepspeed is None
    assert facts.devices
    assert facts.problem.startswith("ModuleNotFoundError: ")
