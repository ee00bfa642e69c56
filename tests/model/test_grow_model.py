"""Growth of a model in memory, with the optimizer that trains it."""

from typing import Any

import pytest
import torch

from model.errors import UserError
from model.growth import grow_model
from model.initialization import build_model
from model.language_model import LanguageModel
from model.parameter_groups import parameter_groups
from model.policy import GrowthPolicy
from stages.checkpoint import load_model
from stages.grow.expand import expand
from tests.model.growths import IDS, small_config
from tests.stages.checkpoints import write_checkpoint


def trained(model: LanguageModel, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        model(IDS[:, :-1], IDS[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("init", ["matched", "copy"])
def test_a_model_grows_in_memory_to_the_bits_that_expand_writes(tmp_path, init):
    policy = GrowthPolicy(init=init, tau="recompute" if init == "copy" else "ramp")
    write_checkpoint(tmp_path / "old")
    expand(tmp_path / "old", tmp_path / "new", attention_tokens=5, policy=policy, seed=7)
    grown = grow_model(load_model(tmp_path / "old"), attention_tokens=5, policy=policy, seed=7)
    expanded = load_model(tmp_path / "new")
    assert grown.config == expanded.config
    assert list(grown.state_dict()) == list(expanded.state_dict())
    assert all(torch.equal(value, expanded.state_dict()[name]) for name, value in grown.state_dict().items())


def test_an_optimizer_keeps_the_moments_of_old_parameters_and_takes_on_the_new_ones():
    model = build_model(small_config(), seed=0)
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.1), lr=1e-2)
    trained(model, optimizer)
    moments = {name: optimizer.state[p]["exp_avg"].clone() for name, p in model.named_parameters()}
    grown = grow_model(model, attention_tokens=3)
    for group in parameter_groups(grown, weight_decay=0.1)[len(optimizer.param_groups) :]:
        optimizer.add_param_group(group)
    for name, parameter in model.named_parameters():
        assert grown.get_parameter(name) is parameter
        assert torch.equal(optimizer.state[parameter]["exp_avg"], moments[name])
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in grown.parameters()}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained(grown, optimizer)
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_grown_model_keeps_dtype_mode_and_what_is_frozen():
    model = build_model(small_config(), seed=0).bfloat16().eval()
    model.embedding.weight.requires_grad_(False)
    grown = grow_model(model, attention_tokens=2)
    assert not grown.training
    assert {parameter.dtype for parameter in grown.parameters()} == {torch.bfloat16}
    assert [name for name, p in grown.named_parameters() if not p.requires_grad] == ["embedding.weight"]


@pytest.mark.slow  # torch.compile imports the compiler
def test_wrappers_of_torch_share_the_groups_and_the_growth_of_the_model_that_they_wrap():
    model = grow_model(build_model(small_config(), seed=0), attention_tokens=3)
    compiled: Any = torch.compile(model)
    engine = torch.nn.Module()
    engine.__dict__["module"] = model  # as DeepSpeed holds it
    for wrapped in (compiled, torch.nn.DataParallel(compiled), engine):
        groups = parameter_groups(wrapped, weight_decay=0.1)
        assert [g["name"] for g in groups] == [g["name"] for g in parameter_groups(model, weight_decay=0.1)]
        assert [g["generation"] for g in groups] == [0, 0, 1]
        grown = grow_model(wrapped, attention_tokens=3)
        assert grown.config.newest_generation == 2
        assert grown.get_parameter("embedding.weight") is model.embedding.weight


def test_a_model_whose_parameters_have_other_names_or_shapes_is_rejected():
    renamed, reshaped = build_model(small_config(), seed=0), build_model(small_config(), seed=0)
    compiled: Any = torch.nn.Module()
    compiled._orig_mod = renamed.blocks["1"]  # as torch.compile(block) holds it
    renamed.blocks["1"] = compiled
    reshaped.embedding = torch.nn.Embedding(31, 8)
    for model, problem in (
        (renamed, "the parameter blocks.1.*torch.compile"),
        (reshaped, r"embedding.weight has shape \(31, 8\) instead of \(29, 8\)"),
        (torch.nn.Linear(2, 2), "a Linear is not a growctl model"),
    ):
        with pytest.raises(UserError, match=problem):
            parameter_groups(model, weight_decay=0.1)
        with pytest.raises(UserError, match=problem):
            grow_model(model, attention_tokens=3)
