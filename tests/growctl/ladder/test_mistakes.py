"""Mistakes in a schedule: each is reported once, at its path.

tests/reliability/test_fuzz.py tests that any value gives a plan or a short message.
"""

import itertools
from typing import Any

import pytest
import yaml

from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.errors import ScheduleError
from tests.growctl.grown_ladders import DECODER, ONE_DECODER, ladder, last_model
from tests.growctl.schedules import DELETE, changed, message_of, parse, paths_of
from tests.model.growths import EXACT, INITS, POSSIBLE, SCORE_FUNCTIONS, TAUS

ALONE: dict[str, Any] = {"controls": []}
NO_SIZES: dict[str, Any] = {f"stages.{i}.{key}": DELETE for i in (0, 1) for key in ("attention_tokens", "ffn_tokens")}
SOURCES = [
    {"name": "books", "source": "/texts/books", "weight": 1},
    {"name": "code", "source": "/texts/code", "weight": 3, "epochs_at_most": 4},
]
BASES: dict[str, dict[str, Any]] = {
    "base": {},
    "alone": ALONE,
    "muon": {"optimizer.name": "muon"},
    "mixed": {
        "data.source": DELETE,
        "data.vocab_size": DELETE,
        "data.tokenizer": "org/name",
        "data.mixture": SOURCES,
        "model.vocab_size": 512,
    },
    "slope": {"growth": {"when": "slope", "slope": 1e-9}},
    "shared": {
        "training.ladder_tokens": "20k",
        "stages.0.until": 0.8,
        "stages.0.train_tokens": None,
        "stages.1.train_steps": None,
    }
    | ALONE,
    "images": {
        "data": {"images": {"source": "/images", "num_classes": 10}},
        "model.image": {"size": 8, "patch": 4},
        "training.sequence_length": DELETE,
    },
    "decoder": DECODER,
    "one decoder": ONE_DECODER,
    "stack": DECODER | {"growth": {"depth": "copy-stack", "allow_jump": True}, "stages.1.num_layers": 4},
    "wider": DECODER | {"stages.1.hidden_size": 64},
    "no sizes": NO_SIZES | {"model.num_layers": 0} | ALONE,
    "from nothing": NO_SIZES | {"model.num_layers": 0, "stages.1.num_layers": 2} | ALONE,
}

WRONG_VALUES = """
base:
  xyz: [1]
  name: [a/b, .hidden, "%(long)s"]
  training.batch_size: [true, 64.5, many, -8, 1000000000000000000000000000000]
  model.num_layer: [3]
  model.vocab_size: [299]
  model.num_heads: [5]
  model.rotary_fraction: [0.1]
  model.num_kv_heads: [3]
  model.activation: [swiglu]
  model.rotary_scaling: [yarn]
  model.attention_window: [0, 17, all]
  model.full_attention_every: [1, 4]
  model.routing: [{groups: 2, read: 3}]
  growth.routing: [{groups: 2, read: 3}, 4]
  data.source: [DELETE, "", "\\ud800"]
  data.vocab_size: [100]
  data.when_exhausted: [other, others]
  learning_rate.decay: [2]
  learning_rate.final: [0.1]
  optimizer.muon_lr_scale: [8]
  growth: [null, {init: zero-key}, {copy_noise: 0.5, allow_jump: true}]
  growth.preset: [offical, [1]]
  growth.ramp: [0.0, 1.5]
  stages.0.name: [DELETE, 124, a/b]
  stages.0.train_token: [2k]
  stages.0.train_tokens: [15X, 127, "%(digits)s"]
  stages.0.ffn_tokens: [DELETE]
  stages.0.sequence_length: [6, 256]
  stages.1.name: [small]
  stages.1.hidden_size: [64]
  stages.1.num_heads: [4]
  stages.1.ffn_tokens: [7]
  stages.1.num_layers: [1, -1, 1001]
  stages.1.mixture: [{}, {books: 1}]
  controls.1.kind: [tokenformer-scratch]
  controls.0.budgets: [[2, 2.0]]
  controls.0.peaks: [[], [1, 1.0], [1, 2, 2.001], [0.5, 2], [1.0004, 2]]
  controls.0.depths: [[3]]
  launch.nodes: [[1, 2, 4]]
  launch.micro_batch_size: [many, 3]
  launch.environment.1A: [x]
muon:
  optimizer.gradient_clipping: [1.0]
  launch.offload: [optimizer]
mixed:
  data.source: [/text]
  data.approximate_tokens: [3M]
  data.mixture.0.weight: [0, -1, .nan, DELETE]
  data.mixture.0.source: [DELETE]
  data.mixture.0.name: [v1.0]
  data.mixture.1.name: [books]
  stages.1.mixture: [{}, {books: 0, code: 0}]
  stages.1.mixture.books: [-1, .inf]
images:
  data.include: ["*.txt"]
  data.workers: [2]
  data.images.augmentation.crop: [[0.5], [0.9, 0.5], [0, 1]]
  data.images.validation_fraction: [0, 1]
  model.image: [null, {size: 9, patch: 4}]
  model.rotary_base: [500]
  samples.prompts: [[a]]
  training.sequence_length: [4]
alone:
  stages.0.layers: [[0]]
  stages.1.layers: [[2], [1, 1], [], 1]
  stages.1: [{name: large, attention_tokens: 4, ffn_tokens: 8, train_steps: 20, layers: [0]}]
shared:
  training.ladder_flops: [1.0e+12]
  training.ladder_tokens: [0, 600]
  stages.0.until: [0, 80, 80%%, 800, null]
  stages.1.until: [0.9]
slope:
  growth.slope: [null, 0]
  learning_rate.decay: [0.9]
stack:
  model.score_function: [softmax]
  model.routing: [{groups: 2, read: 1}]
  growth.routing: [{groups: 2, read: 1}]
  stages.0.ffn_tokens: [DELETE]
  stages.0.hidden_size: [32]
  stages.0.num_heads: [2]
  stages.1.attention_tokens: [8]
  stages.1.ffn_tokens: [8]
  stages.1.layers: [[0]]
  stages.1.num_layers: [1]
  growth.preset: [official]
  growth.copy_noise: [0.3]
wider:
  stages.1.hidden_size: [40, 16]
  stages.1.ffn_tokens: [255]
  growth.old_tokens: [freeze]
  growth.lr_scale: [[1.0, 0.1]]
  growth.weight_decay: [[0.0]]
  growth.rewarmup.of: [new]
"""
"""Values by their key and the schedule that they are wrong in: the message names the key."""

WRONG_TOGETHER = """
- [base, {data.tokenizer: gpt2}, data]
- [base, {data.vocab_size: DELETE, data.tokenizer: gpt2}, model.vocab_size]
- [base, {stages.0.train_steps: 4}, stages.0]
- [base, {stages.0.train_tokens: DELETE}, stages.0]
- [base, {stages.0.train_tokens: 100, stages.0.batch_size: 12}, stages.0.train_tokens]
- [base, {stages.0.sequence_length: 6, stages.0.batch_size: 8}, stages.0.sequence_length]
- [base, {stages.1.sequence_length: 24, stages.1.batch_size: 8}, training.sequence_length]
- [base, {stages.0.sequence_length: 8, data.packing: best_fit}, data.packing]
- [base, {stages.0.batch_size: 6}, launch.micro_batch_size]
- [base, {stages.1.attention_tokens: 4}, stages.1]
- [base, {stages.1.attention_tokens: 4, stages.1.batch_size: 16, stages.1.ramp_steps: 2}, stages.1.ramp_steps]
- [mixed, {stages.1.attention_tokens: 4, stages.1.mixture: {books: 1, code: 3}}, stages.1]
- [base, {launch.kernels: compiled, launch.zero_stage: 3}, launch.kernels]
- [muon, {launch.zero_stage: 2, training.precision: bf16}, launch.zero_stage]
- [mixed, {data.mixture: []}, data.source]
# the steps of stages that share a budget
- [shared, {stages.0.until: 1}, stages.0.until stages.1.until]
- [shared, {training.ladder_tokens: null, stages.1.train_steps: 20}, stages.0.until]
- [shared, {stages.0.train_tokens: 2k, stages.1.train_steps: 20}, stages.0.train_tokens stages.1.train_steps]
- [shared, {training.ladder_tokens: null, training.ladder_flops: 1.0e+7}, training.ladder_flops]
- - base
  - training.ladder_tokens: 20k
    controls: []
    stages:
      - {name: s, attention_tokens: 4, ffn_tokens: 8, until: 0.8}
      - {name: m, attention_tokens: 8, ffn_tokens: 16, until: 0.5}
      - {name: l, attention_tokens: 12, ffn_tokens: 24}
  - stages.1.until
- - base
  - {stages: [{name: a, train_steps: 3}, {name: b, train_steps: 3}]}
  - stages.0.attention_tokens stages.0.ffn_tokens
# images
- [images, {data.images.validation: /others, data.images.validation_fraction: 0.2}, data.images.validation_fraction]
- [images, {data.images: DELETE}, data.images]
- [images, {data.tokenizer: gpt2}, data.tokenizer]
# growth
- [base, {growth: {preset: official, allow_jump: false}}, growth.preset]
- [base, {growth: {preset: paper-appendix, init: random, moments: reset}}, growth.preset]
- [base, {growth: {init: copy, tau: recompute, copy_noise: 0.5}}, stages.1]
- [slope, {learning_rate.shape: cosine}, growth.when]
- [base, {growth.routing: {groups: 3, read: 1}}, stages.1]
- [base, {growth: {routing: {groups: 2, read: 1}, init: copy, tau: recompute}}, stages.1]
- [base, {model.routing: {groups: 3, read: 1}}, stages.0]
- - base
  - {model.score_function: softmax, growth: {routing: {groups: 2, read: 1}, init: zero-value, tau: per-generation}}
  - stages.1
# layers and depth
- [base, {controls: [{kind: official-growth, peaks: [1, 2]}]}, controls.0.peaks]
- [base, {controls: [{kind: best-scratch, depths: [3]}], stages.1.name: 3-layers}, controls.0.depths]
- [base, {controls: [{kind: best-scratch, depths: [2]}]}, controls.0.depths]
- [base, {stages.1.layers: [0]}, controls.0.kind]
- [alone, {stages.1.num_layers: 3, stages.1.layers: [0]}, stages.1.layers]
- [alone, {stages.1.layers: [0], stages.1.attention_tokens: DELETE, stages.1.ffn_tokens: DELETE}, stages.1.layers]
- [base, {stages.1.attention_tokens: DELETE, stages.1.ffn_tokens: DELETE}, stages.1]
- [base, {stages.1.num_layers: 1, controls: [{kind: official-growth}]}, stages.1.num_layers]
- [base, {stages.1.num_layers: 4, controls: [{kind: official-growth}]}, controls.0.kind]
- [base, {stages.1.num_layers: 4, growth.preset: official}, growth.preset]
- [base, {stages.1.num_layers: 4, stages.1.attention_tokens: 4, stages.1.ramp_steps: 3}, stages.1.ramp_steps]
- [base, {stages.1.num_layers: 4, stages.1.attention_tokens: 4, growth.depth: copy-stack}, stages.1]
- [base, {stages.1.num_layers: 4, growth: {depth: copy-stack, allow_jump: true}}, stages.1]
- [from nothing, {stages.1.ffn_tokens: 8}, stages.1.attention_tokens]
- [no sizes, {stages.1.layers: [0], stages.1.ffn_tokens: 8}, stages.1.layers]
- - from nothing
  - {stages.1.attention_tokens: 4, stages.1.ffn_tokens: 8, growth: {depth: copy-stack, allow_jump: true}}
  - stages.1
- - base
  - {model.num_layers: 0, stages: [{name: a, train_steps: 9}], controls: [{kind: decoder-scratch}]}
  - controls.0.kind
# Decoders
- [decoder, {}, stages.1]
- [decoder, {stages.1.batch_size: 8}, stages.1]
- [decoder, {stages.1.num_heads: 1}, stages.1.num_heads]
- [decoder, {model.num_heads: 4, model.num_kv_heads: 2, stages.1.num_heads: 5}, stages.1]
- [decoder, {stages.1.num_layers: 4, growth.depth: copy-stack}, stages.1]
- [decoder, {stages.0.num_layers: 0, stages.1.num_layers: 4}, stages.0.num_layers]
- [one decoder, {controls: [{kind: tokenformer-scratch}]}, controls.0.kind]
- [one decoder, {model.num_layers: 0}, model.num_layers]
- [stack, {stages.1.num_heads: 4}, stages.1]
"""
"""A schedule, what is changed in it, and the paths that the message names."""


def read(text: str) -> Any:
    """YAML in which DELETE stands for leaving a key out."""

    def deleted(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: deleted(each) for key, each in value.items()}
        return [deleted(each) for each in value] if isinstance(value, list) else DELETE if value == "DELETE" else value

    return deleted(yaml.safe_load(text))


VALUES = read(WRONG_VALUES % {"long": "x" * 101, "digits": "9" * 90 + "T"})


@pytest.mark.parametrize(("base", "path"), [(base, path) for base, values in VALUES.items() for path in values])
def test_a_wrong_value_is_reported_at_its_key(base: str, path: str) -> None:
    for value in VALUES[base][path]:
        assert paths_of(parse, changed(BASES[base] | {path: value})) == path, value


@pytest.mark.parametrize(("base", "changes", "paths"), read(WRONG_TOGETHER))
def test_values_that_do_not_go_together_are_one_mistake(base: str, changes: dict[str, Any], paths: str) -> None:
    assert paths_of(parse, changed(BASES[base] | changes)) == paths


def test_an_error_names_the_stage_whose_copies_are_not_whole() -> None:
    growth = {"init": "copy", "tau": "recompute"}
    sizes = (4, 8), (8, 8), (16, 24), (32, 40)
    with pytest.raises(ScheduleError, match=r"stages\.3: growth by copies adds .* a whole multiple of the 24 tokens"):
        ladder(*sizes, growth=growth)
    block = last_model(ladder(*sizes[:3], growth=growth)).blocks[0]
    assert (block.query.value_shares, block.ffn.value_shares) == ((1 / 4, 1 / 2, 1.0), (1 / 3, 1.0))
    with pytest.raises(ScheduleError, match=r"stages\.2\.attention_tokens = 6: must be 8 or more"):
        ladder((4, 8), (8, 16, [1]), (6, 16))


JUMPS: dict[str, Any] = {"init": "copy", "tau": "recompute", "copy_noise": 0.1, "allow_jump": True}
OF_TOKENFORMERS = {"old_tokens": "freeze", "lr_scale": [1.0, 0.5], "rewarmup": {"steps": 3, "of": "new"}}


def test_a_policy_that_jumps_is_accepted_if_nothing_grows() -> None:
    for growth in ({"tau": "recompute"}, {"init": "copy", "tau": "frozen"}, {"preset": "official"}):
        assert plan_stages(ladder((4, 8), (8, 16), growth=growth | {"allow_jump": True}))
        assert ladder((4, 8), growth=growth)
    assert ladder((4, 8), growth={"init": "zero-value", "tau": "recompute"})
    with pytest.raises(ScheduleError, match="cannot be combined with tau 'ramp'"):
        ladder((4, 8), growth={"init": "zero-value"})
    assert parse(changed(ONE_DECODER | {"growth": OF_TOKENFORMERS | JUMPS})), "as a ladder's decoder control"


def test_a_ladder_is_accepted_if_its_policy_is_exact_for_its_scores_or_may_jump() -> None:
    exact = {(init, tau, score_function) for init, tau, score_function in POSSIBLE if (init, tau) in EXACT}
    for init, tau, score_function, jump in itertools.product(INITS, TAUS, SCORE_FUNCTIONS, (False, True)):
        model = {"num_layers": 3, "hidden_size": 32, "num_heads": 2, "score_function": score_function}
        blocks: dict[str, Any] = {"growth": {"init": init, "tau": tau, "allow_jump": jump}, "model": model}
        if (init, tau, score_function) in (POSSIBLE if jump else exact):
            schedule = ladder((4, 8), (8, 16), (24, 48), **blocks)
            assert [g.number for g in last_model(schedule).blocks[0].query.generations] == [0, 1, 2]
        else:
            with pytest.raises(ScheduleError, match=r"^s\.yaml: (growth|stages\.1): "):
                ladder((4, 8), (8, 16), (24, 48), **blocks)


def test_all_mistakes_are_reported_together_with_unknown_keys_first() -> None:
    data = changed({"seed": "x" * 999, "training.batch_sise": 1, "learning_rate.peak": DELETE})
    first, second, *others = message_of(parse, data).splitlines()
    assert first == "s.yaml: 3 problems"
    assert second.startswith("  training.batch_sise = 1: no such key; did you mean 'batch_size'? (allowed here: ")
    assert others == [f"  seed = '{'x' * 56}...: must be a valid integer", "  learning_rate.peak: is missing"]
