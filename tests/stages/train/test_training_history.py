"""The history that a stage's checkpoints get: equal exactly where every update was equal."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config_growth import grow_config
from stages.augmentation import Augmentation
from stages.checkpoint.lineage import Lineage, TrainingCost, TrainingRecord
from stages.checkpoint.manifest import Manifest
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import read_dataset_manifest
from stages.spec import Anomalies, GenerationRule, LearningRate, MixtureSpan, SlopeTrigger, TrainSpec, progress_at
from stages.train.training_history import TrainingHistory
from tests.model.growths import small_decoder
from tests.stages.checkpoints import small_config
from tests.stages.data.test_dataset import write_dataset
from tests.stages.specs import small_spec

MODEL = small_config()
RATE = {"shape": ["wsd", "cosine"], "peak": [1e-2, 2e-2], "warmup_steps": [0, 1], "decay_steps": range(4)}
RULE = {"lr_scale": [1.0, 0.5], "frozen_steps": range(4), "warmup_steps": range(4)}
STAGE = {"ramp_steps": [0, 1], "anneal_steps": [None, *range(4)], "seed": [0, 1], "samples_seen": [0, 4]}


@st.composite
def stages(draw: st.DrawFn) -> TrainSpec:
    """A stage of 4 to 8 steps. The choices are few, so that two stages often agree for some steps."""

    def drawn(choices: dict[str, Any]) -> dict[str, Any]:
        return {name: draw(st.sampled_from(values)) for name, values in choices.items()}

    steps, longer, first = draw(st.tuples(st.integers(4, 8), st.integers(0, 3), st.integers(0, 1)))
    rate = LearningRate(final=0.0, total_steps=steps + longer, first_step=first, **drawn(RATE))
    left_out = draw(st.sampled_from([(), ((2, 1),)]))
    changes = drawn(STAGE) | {"num_steps": steps, "learning_rate": rate, "left_out": left_out}
    return small_spec(MODEL, generations=(GenerationRule(**drawn(RULE)),), **changes)


def updates(spec: TrainSpec, steps: int) -> list[Any]:
    """What the first updates of a stage do, spelled out."""
    rule = spec.rule(0)
    rates = [spec.learning_rate.at(step) * rule.factor(step) for step in range(steps)]
    ramps = [progress_at(step, spec.ramp_steps) for step in range(steps)]
    tau = [None if spec.anneal_steps is None else progress_at(step, spec.anneal_steps) for step in range(steps)]
    left_out = [entry for entry in spec.left_out if entry[0] < steps]
    return [spec.seed, spec.samples_seen, rates, ramps, tau, left_out]


@given(stages(), stages(), st.integers(1, 8))
def test_two_stages_have_the_same_history_exactly_as_long_as_their_updates_are_the_same(first, second, steps):
    one, other = (TrainingHistory(spec, "d" * 64, "fp32") for spec in (first, second))
    assert (one.hash_at(steps) == other.hash_at(steps)) == (updates(first, steps) == updates(second, steps))


@given(stages(), st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_the_hash_at_a_step_does_not_depend_on_what_was_asked_before(spec, asked):
    history = TrainingHistory(spec, "d" * 64, "fp32")
    assert [history.hash_at(steps) for steps in asked] == [
        TrainingHistory(spec, "d" * 64, "fp32").hash_at(steps) for steps in asked
    ]


def hash_of(precision: Any = "fp32", dataset: str = "d", **changes: Any) -> str:
    """After three steps; `dataset` is its fingerprint, or the path of a mixture."""
    spec = small_spec(MODEL, **{"dataset": dataset} | changes)
    fingerprint = read_dataset_manifest(Path(dataset)).fingerprint if spec.mixture else dataset
    return TrainingHistory(spec, fingerprint, precision).hash_at(3)


def test_settings_of_the_launch_are_not_part_of_the_history():
    launch: dict[str, Any] = {"zero_stage": 3, "offload": "optimizer", "micro_batch_size": 2, "kernels": "compiled"}
    elsewhere: dict[str, Any] = {"stage": "other", "directory": "d", "dataset": "d", "attempt": 4}
    often: dict[str, Any] = {"log_every": 7, "evaluate_every": 9, "checkpoint_every": 9, "keep_checkpoints": 9}
    assert hash_of(**launch, **elsewhere, **often, recompute_every=2, keep_trunk=True) == hash_of()
    assert hash_of(anomalies=Anomalies(most=3), evaluation_length=20) == hash_of()


def test_everything_that_determines_the_weights_is_part_of_the_history():
    decay = small_spec(MODEL).optimizer.model_copy(update={"weight_decay": 0.2})
    skip = Anomalies(spikes="skip")
    changes: list[dict[str, Any]] = [
        *({}, {"dataset": "e"}, {"precision": "bf16"}, {"batch_size": 8}, {"sequence_length": 20}),
        *({"window_length": 20}, {"optimizer": decay}, {"generations": (GenerationRule(weight_decay=0.3),)}),
        *({"anomalies": skip}, {"anomalies": skip, "log_every": 2}, {"packing": "best_fit"}),  # a log line sets a limit
    ]
    models = (MODEL.model_copy(update={"document_end_id": 0}), small_config(attention_tokens=6))
    hashes = [hash_of(**changed) for changed in changes]
    hashes += [TrainingHistory(small_spec(model), "d", "fp32").hash_at(3) for model in models]
    seen = MODEL.model_dump(exclude={"tie_embeddings", "rotary_fraction", "image"}, exclude_none=True)
    images = type(MODEL).model_validate(seen | {"image": {"size": 8, "patch": 4}})
    for augmentation in (Augmentation(), Augmentation(flip=True), Augmentation(mixup=0.2)):
        hashes.append(TrainingHistory(small_spec(images, augmentation=augmentation), "d", "fp32").hash_at(3))
    assert len(set(hashes)) == len(changes) + len(models) + 3


def test_the_weights_of_a_mixture_are_part_of_the_history_as_far_as_training_has_come(tmp_path: Path):
    """Three steps of four samples of ten tokens; the source `code` has nine samples an epoch."""
    for name, num_tokens in (("books", 500), ("code", 90)):
        write_dataset(tmp_path / name, [num_tokens], [100])

    def hash_with(*weights: tuple[int, dict[str, float]], epochs: float | None = None, **changes: Any) -> str:
        sources = [Ingredient("books", tmp_path / "books", 2.0), Ingredient("code", tmp_path / "code", 1.0, epochs)]
        spans = tuple(MixtureSpan(first_window=first, weights=each) for first, each in weights)
        return hash_of(dataset=str(write_mixture(sources, tmp_path)), mixture=spans, **changes)

    base, even = {"books": 2.0, "code": 1.0}, {"books": 1.0, "code": 1.0}
    few: dict[str, Any] = {"when_exhausted": "others"}
    plain = hash_with((0, base))
    assert plain == hash_with((0, {"code": 0.1, "books": 0.2}), (4, base)), "the unit does not matter"
    assert plain == hash_with((0, base), (12, even)), "nor does what comes later"
    assert plain == hash_with((0, base), epochs=2, **few), "nor does a limit that is not reached"
    changed = [plain, hash_with((0, even)), hash_with((0, base), (11, even)), hash_with((0, base), epochs=0.2, **few)]
    changed += [hash_with((0, base), (first, even), left_out=((2, 1),)) for first in (11, 13)]
    assert len(set(changed)) == len(changed)


def made(spec: TrainSpec, step: int, losses: list[tuple[int, float]], **details: Any) -> Manifest:
    """A checkpoint after `step` steps of `spec`, in which those losses were measured."""
    history = TrainingHistory(spec, "d", "fp32").at(step, TrainingCost(steps=step))
    record = TrainingRecord.model_validate({"losses": losses, "evaluations": spec.evaluations} | details)
    return Manifest(
        kind="parameters" if record.is_finished else "engine", model=MODEL, step=step, group_steps={},
        samples_seen=0, seed=0, dataset_fingerprint="d", tokenizer_sha256=None, files={},
        lineage=Lineage(operation="train", history=history, training=record),
    )  # fmt: skip


TRIGGER = SlopeTrigger(slope=0.5, window=2, step_flops=1.0)
FALLING, FLAT = [(1, 3.0), (2, 2.0), (3, 1.0)], [(1, 3.0), (2, 2.9), (3, 1.0)]


@pytest.mark.parametrize(
    ("losses", "changes", "reused"),
    [(FALLING, {}, True), (FLAT, {}, False), (FALLING, {"evaluation_sequences": 5}, False)],
    ids=["the slope would not have fired", "it would have", "other validation sequences"],
)
def test_a_stage_that_a_slope_may_end_continues_where_the_slope_has_not_ended_it(losses, changes, reused):
    checkpoint = made(small_spec(MODEL, num_steps=6), 4, losses)  # saved by a stage without a slope
    judged = small_spec(MODEL, num_steps=6, trigger=TRIGGER, **changes)
    assert TrainingHistory(judged, "d", "fp32").leads_on_from(checkpoint) is reused


@pytest.mark.parametrize(("own", "reused"), [(FALLING, True), (FLAT, False)])
def test_a_slope_follows_the_loss_at_the_stages_own_context(own, reused):
    elsewhere = {"num_steps": 6, "evaluation_length": 20, "trigger": TRIGGER}
    checkpoint = made(small_spec(MODEL, **elsewhere), 4, FLAT if reused else FALLING, own_context_losses=own)
    assert TrainingHistory(small_spec(MODEL, **elsewhere), "d", "fp32").leads_on_from(checkpoint) is reused


def test_the_end_of_a_shorter_stage_lacks_the_evaluation_that_a_slope_of_a_longer_one_needs():
    end = made(small_spec(MODEL, num_steps=3), 3, FALLING[:2], validation_tokens=1)
    slope: dict[str, Any] = {"trigger": TRIGGER}
    for changes, reused in (({}, True), (slope, False), (slope | {"evaluate_every": 2}, False)):
        longer = small_spec(MODEL, num_steps=6, **changes)
        assert TrainingHistory(longer, "d", "fp32").leads_on_from(end) is reused


def test_the_end_of_a_shorter_stage_has_a_log_line_that_sets_the_limit_of_spikes():
    skip = {"anomalies": Anomalies(spikes="skip"), "log_every": 2, "checkpoint_every": 3, "evaluate_every": 5}
    for step in range(1, 6):
        reused = step != 1  # each of the three writes a line
        end = made(small_spec(MODEL, num_steps=step, **skip), step, [], validation_tokens=1)
        longer = small_spec(MODEL, num_steps=6, **skip)
        assert TrainingHistory(longer, "d", "fp32").leads_on_from(end) is reused


@pytest.mark.parametrize("model", [small_config(), small_decoder()])
def test_the_rules_of_all_generations_count_in_both_families(model):
    """The rules of old and of new parameters, by generation."""
    grown, hashes = grow_config(model, ffn_tokens=3), set()
    for scales in [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5)]:
        rules = tuple(GenerationRule(lr_scale=scale) for scale in scales)
        hashes.add(TrainingHistory(small_spec(grown, generations=rules), "d" * 64, "fp32").hash_at(2))
    assert len(hashes) == 3
