"""Parameter groups and precision, tested without an engine."""

from deepspeed.runtime import compiler

from model.decoder_config import decoder_config
from model.initialization import build_model
from model.parameter_groups import parameter_groups
from model.policy import grow_config
from stages.engine.deepspeed_api import uncompiled
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec


def groups_of(config) -> dict[str, tuple[float, int]]:
    """{name: (weight decay, parameters)} in order."""
    model = build_model(config, device="meta")
    return {
        g["name"]: (g["weight_decay"], sum(p.numel() for p in g["params"]))
        for g in parameter_groups(model, small_spec(config).weight_decay)
    }


def test_each_growth_adds_its_own_groups_and_keeps_the_earlier_ones():
    base = small_config()
    ffn_only = grow_config(base, attention_tokens=0, ffn_tokens=6)
    both = grow_config(ffn_only, attention_tokens=3, ffn_tokens=6)
    before, after = groups_of(base), groups_of(both)
    assert list(after) == ["generation-0-decay", "generation-0-no-decay", "generation-1-decay", "generation-2-decay"]
    assert {name: after[name] for name in before} == before
    assert after["generation-1-decay"] == (0.1, 2 * 2 * 6 * 16)
    assert after["generation-2-decay"] == (0.1, 2 * 2 * (4 * 3 + 6) * 16)


def test_muon_has_the_matrices_of_the_blocks_in_groups_of_their_own_and_only_matrices_decay():
    grown = grow_config(small_config(), attention_tokens=3, ffn_tokens=6)
    decoder = decoder_config(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_tokens=64)
    for config, generations in ((grown, 2), (decoder, 1)):
        groups = {group["name"]: group for group in parameter_groups(build_model(config, device="meta"), 0.1, "muon")}
        muon = [f"generation-{number}-muon" for number in range(generations)]
        assert list(groups) == ["generation-0-decay", muon[0], "generation-0-no-decay", *muon[1:]]
        assert [name for name, group in groups.items() if group["use_muon"]] == muon
        assert [tuple(p.shape) for p in groups["generation-0-decay"]["params"]] == [(31, 16)]  # the embedding
        assert all(p.ndim == 2 for name in muon for p in groups[name]["params"])
    for group in parameter_groups(build_model(decoder, device="meta"), 0.1):
        assert {p.ndim for p in group["params"]} == ({2} if group["weight_decay"] else {1})


def test_a_decorator_for_compiling_returns_the_plain_function_however_it_is_written():
    compile_function = compiler.compile
    with uncompiled():
        found = [compiler.compile(len), compiler.compile()(len), compiler.compile(mode="reduce-overhead")(len)]
    assert found == [len, len, len]
    assert compiler.compile is compile_function
