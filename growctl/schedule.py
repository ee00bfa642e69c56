"""The growth schedule: its schema, and how a YAML file and overrides become one.

hydra composes, OmegaConf resolves, pydantic judges. Unknown keys, wrong types and impossible combinations end here, in
one message, before any work.
"""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from growctl.schedule_errors import NAME_ALLOWED, describe, did_you_mean, innermost_reason, shown
from model.config import ScoreFunction
from stages.corpus import DEFAULT_VOCAB_SIZE, DataSpec
from stages.spec import Optimizer

SHIPPED = Path(__file__).resolve().parent.parent / "schedules"
"""Where the schedules that come with growctl lie, in a checkout and in an installed wheel alike."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COUNT = re.compile(r"(\d{1,99}(?:\.\d{1,99})?) ?([kmbt]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NOT_HYDRA = "hydra's own settings are no part of a schedule"
_OVERRIDE = re.compile(r"(~|\+{0,2})([A-Za-z_]\w*)(?:\.\w+)*(=.*)?", re.DOTALL | re.ASCII)


class ScheduleError(ValueError):
    """A schedule that cannot be used: one message, with the dotted path, the value and what is allowed."""


def parse_count(value: Any) -> int:
    """15B, 300M, 2.5k or a plain whole number as an int; ValueError for anything else."""
    number = Decimal("nan")
    if isinstance(value, str) and (match := _COUNT.fullmatch(value.strip())):
        number = Decimal(match[1]) * _FACTORS[match[2].upper()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = Decimal(value)
    if not number.is_finite() or number != int(number):
        raise ValueError("must be a whole number; 2.5k, 300M and 15B are fine")
    return int(number)


Count = Annotated[int, BeforeValidator(parse_count), Field(gt=0, le=10**14)]
"""A count as people write it."""

CountOrZero = Annotated[int, BeforeValidator(parse_count), Field(ge=0, le=10**14)]
Width = Annotated[int, Field(gt=0, le=2**20)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
"""As RUN_NAME, with room for what a control's name has behind its ladder's."""


class _Block(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class DataBlock(DataSpec):
    """`stages.corpus.DataSpec`, with the vocabulary as people write it."""

    model_config = ConfigDict(allow_inf_nan=False)

    vocab_size: Annotated[int, BeforeValidator(parse_count), Field(ge=257, le=2**20)] | None = None
    """Entries of the byte-level BPE that is trained on the text."""

    @property
    def num_tokens(self) -> int | None:
        """Entries of the tokenizer, where the schedule alone tells."""
        return None if self.tokenizer else (self.vocab_size or DEFAULT_VOCAB_SIZE)


class ModelBlock(_Block):
    """What all stages of a run have in common: growth changes none of it."""

    family: Literal["tokenformer", "transformer"] = "tokenformer"
    num_layers: Annotated[int, Field(gt=0, le=1000)]
    hidden_size: Width
    """Model width."""
    num_heads: Width
    vocab_size: Count | None = None
    """Rows of the embedding; by default the vocabulary that `data.vocab_size` trains."""
    ffn_size: Width | None = None
    """Inner width of a transformer's MLP; by default 4 x hidden_size."""
    score_function: ScoreFunction = "l2_norm_gelu"
    rotary_fraction: float = Field(default=0.25, ge=0.0, le=1.0)
    rotary_base: PositiveFloat = 10000.0


class StageBlock(_Block):
    """One stage: a size, trained for a budget."""

    name: Name
    """Label, unique in the ladder, used in paths and tables."""
    attention_tokens: Count | None = None
    """Parameter tokens in each of Q, K, V and O."""
    ffn_tokens: Count | None = None
    """Parameter tokens in the FFN."""
    train_tokens: Count | None = None
    """Data tokens of this stage; rounded to whole steps. Either this or train_steps."""
    train_steps: Count | None = None
    """Optimizer steps of this stage."""


class TrainingBlock(_Block):
    """What every optimizer step looks like."""

    sequence_length: Count
    """Context, data tokens."""
    batch_size: Count
    """Sequences an optimizer step, over all devices."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16 with float32 master weights, or float32. auto: bf16 where the device is fast at it."""
    log_every: Count = 10
    """Steps between lines of training loss."""


class LearningRateBlock(_Block):
    """Warm-up, then hold and decay (`wsd`) or a cosine."""

    peak: PositiveFloat
    final: NonNegativeFloat = 0.0
    """The rate at the end."""
    shape: Literal["wsd", "cosine"] = "wsd"
    span: Literal["ladder", "stage"] = "ladder"
    """ladder: one warm-up at the start, one decay at the end of all stages. stage: each stage its own (the paper)."""
    warmup_steps: CountOrZero = 0
    decay: float = Field(default=0.2, ge=0.0, le=1.0)
    """Share of the span that the decay takes (`wsd`)."""


class OptimizerBlock(_Block):
    """AdamW, with the paper's values as defaults."""

    betas: Annotated[list[Annotated[float, Field(ge=0.0, lt=1.0)]], Field(min_length=2, max_length=2)] = [0.9, 0.95]
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    """On matrices only."""
    gradient_clipping: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0: none."""

    def optimizer(self) -> Optimizer:
        """The same, for a worker."""
        first, second = self.betas
        return Optimizer(
            betas=(first, second),
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            gradient_clipping=self.gradient_clipping,
        )


class GrowthBlock(_Block):
    """How new parameter tokens enter: random values, keys that rise from zero. Exact at the moment of growth."""

    ramp: float = Field(default=0.02, gt=0.0, le=1.0)
    """Share of the stage over which the new keys rise from 0 to 1 (short is best: 30 to 50 steps in small models)."""


class EvaluationBlock(_Block):
    """Validation during a stage. At its end there is always one over the same sequences, in float32."""

    every: Count = 500
    """Steps."""
    max_sequences: Count | None = None
    """Validation sequences read each time; by default all."""


class CheckpointBlock(_Block):
    """Checkpoints within a stage."""

    every: Count = 500
    """Steps."""
    keep: Count = 2
    """How many of the newest are kept."""


class ControlBlock(_Block):
    """A run generated for comparison."""

    kind: Literal["tokenformer-scratch", "transformer-scratch"]
    """The last stage's size from scratch: the same Tokenformer, or the Transformer nearest to it in parameters."""
    budgets: Annotated[list[Annotated[float, Field(gt=0.0, le=1000.0)]], Field(min_length=1)] = [1.0]
    """Its FLOPs, as multiples of the whole ladder's; one run each. Three or more let the report find equal loss."""


class LaunchBlock(_Block):
    """How the work is laid on the machine. May change between a run and its resumption."""

    devices: Literal["auto"] | PositiveInt = "auto"
    """Ranks on this machine. auto: every GPU; without a GPU a rank a core, 8 at most, that divide the batch."""
    zero_stage: Literal[1, 2, 3] = 1
    """DeepSpeed ZeRO: 1 shards optimizer state, 2 gradients too, 3 parameters too."""
    micro_batch_size: Count | None = None
    """Sequences a forward pass on one device; by default as many as a step gives it."""

    @field_validator("devices", mode="before")
    @classmethod
    def _auto_or_a_number(cls, value: Any) -> Any:
        if value == "auto" or (type(value) is int and value > 0):
            return value
        raise ValueError("must be auto, or a whole number above 0")

    @field_validator("zero_stage", mode="before")
    @classmethod
    def _no_zero_stage_0(cls, value: Any) -> Any:
        if type(value) is int and value == 0:
            raise ValueError("ZeRO 0 keeps no optimizer state that growth could read; use 1, which costs no more")
        if type(value) is not int or not 1 <= value <= 3:
            raise ValueError("must be 1, 2 or 3")
        return value


class Schedule(_Block):
    """A whole growth schedule, with every default written out."""

    name: Name | None = None
    """Name of the run; by default the file's."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: DataBlock
    model: ModelBlock
    stages: Annotated[list[StageBlock], Field(min_length=1)]
    training: TrainingBlock
    learning_rate: LearningRateBlock
    optimizer: OptimizerBlock = OptimizerBlock()
    growth: GrowthBlock = GrowthBlock()
    evaluation: EvaluationBlock = EvaluationBlock()
    checkpoint: CheckpointBlock = CheckpointBlock()
    controls: list[ControlBlock] = []
    launch: LaunchBlock = LaunchBlock()

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        size = self.model.vocab_size or self.data.num_tokens
        assert size is not None
        return size

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        checks = (_impossible_model, _impossible_stages, _impossible_training, _impossible_controls)
        if problems := [problem for check in checks for problem in check(self)]:
            raise ValueError("\n".join(problems))
        return self


# Combinations that no single field can see, each as `path = value: what is allowed`


def _impossible_model(schedule: Schedule) -> Iterator[str]:
    model, num_tokens = schedule.model, schedule.data.num_tokens
    if model.vocab_size is None and num_tokens is None:
        yield "model.vocab_size: is missing; data.tokenizer is a given one, so say how many tokens it has"
    if model.vocab_size and num_tokens and model.vocab_size < num_tokens:
        yield f"model.vocab_size = {model.vocab_size}: must be at least the tokenizer's {num_tokens}"
    if model.family == "tokenformer" and model.ffn_size is not None:
        yield f"model.ffn_size = {model.ffn_size}: is a transformer's; a tokenformer's stages have ffn_tokens"
    if model.hidden_size % model.num_heads:
        yield f"model.num_heads = {model.num_heads}: must divide model.hidden_size, {model.hidden_size}"
        return
    head_width = model.hidden_size // model.num_heads
    turned = int(head_width * model.rotary_fraction)
    if model.rotary_fraction and (turned < 2 or turned % 2):
        yield (
            f"model.rotary_fraction = {model.rotary_fraction}: turns {turned} of the {head_width} dimensions of a "
            "head; it must come to an even number, 2 or more, or be 0"
        )


def _impossible_stages(schedule: Schedule) -> Iterator[str]:
    model, stages = schedule.model, schedule.stages
    if len(stages) > 1 and model.family == "transformer":
        yield f"stages: has {len(stages)} entries, but a transformer does not grow; it takes one"
    elif len(stages) > 1 and model.score_function == "softmax":
        yield (
            "model.score_function = 'softmax': cannot be grown by zero keys, since exp(0) = 1; "
            "use l2_norm_gelu or gelu_l2_norm"
        )
    else:
        for index in range(len(stages)):
            yield from _impossible_size(schedule, index)
    step = schedule.training.batch_size * schedule.training.sequence_length
    for index, stage in enumerate(stages):
        here = f"stages.{index}"
        if stage.name in [other.name for other in stages[:index]]:
            yield f"{here}.name = {stage.name!r}: another stage has that name; each needs its own"
        if stage.train_tokens is None and stage.train_steps is None:
            yield f"{here}: needs train_tokens or train_steps"
        if stage.train_tokens is not None and stage.train_steps is not None:
            yield f"{here}: has both train_tokens and train_steps; drop one (as an override: ~{here}.train_tokens)"
        if stage.train_tokens is not None and stage.train_tokens < step:
            yield f"{here}.train_tokens = {stage.train_tokens}: one step alone takes {step}; that or more"


def _impossible_size(schedule: Schedule, index: int) -> Iterator[str]:
    stage, before = schedule.stages[index], schedule.stages[index - 1] if index else None
    here, same = f"stages.{index}", before is not None
    for field in ("attention_tokens", "ffn_tokens"):
        value, smallest = getattr(stage, field), getattr(before, field, None)
        if schedule.model.family == "tokenformer" and value is None:
            yield f"{here}.{field}: is missing; a tokenformer's stage says how many parameter tokens it has"
        if schedule.model.family == "transformer" and value is not None:
            yield f"{here}.{field} = {value}: a transformer has no parameter tokens; leave it out"
        if value is not None and smallest is not None and value < smallest:
            yield f"{here}.{field} = {value}: is less than the {smallest} of the stage before; growth only adds"
        same = same and value is not None and value == smallest
    if same:
        yield f"{here}: is as large as the stage before; add tokens, or make the two one stage"


def _impossible_training(schedule: Schedule) -> Iterator[str]:
    rate = schedule.learning_rate
    if rate.final > rate.peak:
        yield f"learning_rate.final = {rate.final}: must not be above learning_rate.peak, {rate.peak}"
    micro, batch = schedule.launch.micro_batch_size, schedule.training.batch_size
    if micro and batch % micro:
        yield f"launch.micro_batch_size = {micro}: must divide training.batch_size, {batch}"


def _impossible_controls(schedule: Schedule) -> Iterator[str]:
    if schedule.controls and schedule.name and not RUN_NAME.fullmatch(schedule.name):
        yield f"name = {shown(schedule.name)}: must be {NAME_ALLOWED}"
    for index, control in enumerate(schedule.controls):
        here = f"controls.{index}"
        if control.kind == "tokenformer-scratch" and schedule.model.family == "transformer":
            yield f"{here}.kind = {control.kind!r}: the schedule has no tokenformer; use 'transformer-scratch'"
        if control.kind in [other.kind for other in schedule.controls[:index]]:
            yield f"{here}.kind = {control.kind!r}: is there already; write all its budgets in one list"
        if len({f"{budget:g}" for budget in control.budgets}) < len(control.budgets):
            yield f"{here}.budgets = {shown(control.budgets)}: has a budget twice; each needs its own run"


def find_schedule(reference: str) -> Path:
    """The file that `reference` means: a path that exists, else a shipped name (`quickstart`). Else a ScheduleError."""
    path = Path(reference)
    try:
        if path.exists() and not path.is_dir():
            return path.absolute()
    except (OSError, ValueError):
        pass  # too long for a file's name, or worse
    names = {path.relative_to(SHIPPED).with_suffix("").as_posix(): path for path in sorted(SHIPPED.rglob("*.yaml"))}
    name = reference.removeprefix("schedules/").removesuffix(".yaml")
    if name in names:
        return names[name]
    hint = did_you_mean(Path(name).name, list(names))
    raise ScheduleError(f"{shown(reference)}: no such file; growctl comes with {', '.join(names)}{hint}")


def load_schedule(reference: str, overrides: Sequence[str] = ()) -> Schedule:
    """The schedule at a path or of a shipped name, with hydra overrides (`stages.0.train_tokens=200k`) applied.

    Its name is filled in. Raises ScheduleError with everything that is wrong with it.
    """
    path = find_schedule(reference)
    data = _compose(_read(path, reference), path.parent, overrides, reference)
    return parse_schedule(data, label=reference, default_name=path.stem)


def parse_schedule(data: Any, *, label: str, default_name: str) -> Schedule:
    """A schedule from plain data (`label` is what messages call it); ScheduleError where it cannot be used."""
    if not isinstance(data, dict) or not data.keys() & Schedule.model_fields.keys():
        raise ScheduleError(f"{label}: is no schedule; one has the keys {', '.join(Schedule.model_fields)}")
    try:
        schedule = Schedule.model_validate(data)
    except ValidationError as error:
        lines = describe(error, Schedule)
        if len(lines) > 1:
            lines = [f"{len(lines)} problems", *lines]
        raise ScheduleError(f"{label}: " + "\n  ".join(lines)) from None
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: is missing, and the file's {default_name!r} cannot be one: {NAME_ALLOWED}"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


def _read(path: Path, label: str) -> Any:
    """A YAML file's mapping. Read here and not by hydra, so that it may have any name and errors have a line."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import MarkedYAMLError, YAMLError

    try:
        config = OmegaConf.load(path)
    except UnicodeDecodeError:
        raise ScheduleError(f"{label}: is not text in UTF-8; a schedule is a YAML file") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ScheduleError(f"{label}: {where}{error.problem}") from None
    except (OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or innermost_reason(error)
        raise ScheduleError(f"{label}: cannot be read: {reason}") from None
    if not isinstance(config, DictConfig):
        return OmegaConf.create()
    if "hydra" in config:
        raise ScheduleError(f"{label}: hydra: {_NOT_HYDRA}")
    return config


def _compose(config: Any, folder: Path, overrides: Sequence[str], label: str) -> Any:
    """Plain data from a file's mapping, the files of its defaults list, and overrides."""
    from hydra import compose, initialize, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    written = [_checked(text) for text in overrides]
    try:
        ConfigStore.instance().store("growctl-schedule", config)
        # only a defaults list looks around: else a folder data/ beside the file would pass for choices of `data`
        beside = "defaults" in config
        with initialize_config_dir(str(folder), version_base="1.3") if beside else initialize(None, version_base="1.3"):
            composed = compose("growctl-schedule", written)
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, RecursionError) as error:
        if overrides:
            _compose(config, folder, overrides[:-1], label)  # raises, unless it takes the last one to fail
            label = f"override {shown(overrides[-1])}"
        raise ScheduleError(f"{label}: {innermost_reason(error)}") from error


def _checked(override: str) -> str:
    """An override as hydra gets it, after a look at its form."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    match = _OVERRIDE.fullmatch(override)
    if not match or (match[1] != "~" and match[3] is None):
        raise ScheduleError(f"{shown(override)} is no override; write key=value, for example training.batch_size=64")
    if match[2] == "hydra":
        raise ScheduleError(f"override {shown(override)}: {_NOT_HYDRA}")
    try:
        parsed = OverridesParser.create().parse_override(override)
    except (HydraException, ValueError, RecursionError):
        hint = "put text with special characters in quotes, inside those for the shell: 'key=\"...\"'"
        raise ScheduleError(f"override {shown(override)}: the value cannot be read; {hint}") from None
    if parsed.is_sweep_override():
        raise ScheduleError(f"override {shown(override)}: gives several values; write a list as key=[1,2]")
    return override if override.startswith(("+", "~")) else f"++{override}"
