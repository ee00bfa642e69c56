"""The growth schedule: its schema, and how a YAML file and overrides become one.

hydra composes, OmegaConf resolves, pydantic judges. Unknown keys, wrong types and impossible combinations end here, in
one message, before any work.
"""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from model.config import ScoreFunction
from stages.corpus import DEFAULT_VOCAB_SIZE, DataSpec
from stages.spec import Optimizer

SHIPPED = Path(__file__).resolve().parent.parent / "schedules"
"""Where the schedules that come with growctl lie, in a checkout and in an installed wheel alike."""

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMBT]?)")
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class ScheduleError(ValueError):
    """A schedule that cannot be used: one message, with the dotted path, the value and what is allowed."""


def parse_count(value: Any) -> Any:
    """15B, 300M, 2.5k or a plain whole number as an int; anything else as it is, for pydantic to refuse."""
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip())
        if not match:
            raise ValueError("must be a whole number, or one with k, M, B or T behind it (15B, 2.5k)")
        number = float(match[1]) * _FACTORS[match[2]]
        if number != int(number):
            raise ValueError("must come to a whole number")
        return int(number)
    if isinstance(value, float) and value == int(value):
        return int(value)
    return value


Count = Annotated[PositiveInt, BeforeValidator(parse_count)]
"""A count as people write it."""


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class DataBlock(DataSpec):
    """`stages.prepare.DataSpec`, with the vocabulary as people write it."""

    vocab_size: Annotated[int | None, BeforeValidator(parse_count)] = Field(default=None, ge=257, le=2**20)
    """Entries of the byte-level BPE that is trained on the text."""

    @property
    def num_tokens(self) -> int | None:
        """Entries of the tokenizer, where the schedule alone tells."""
        return None if self.tokenizer else (self.vocab_size or DEFAULT_VOCAB_SIZE)


class ModelBlock(_Block):
    """What all stages of a run have in common: growth changes none of it."""

    family: Literal["tokenformer", "transformer"] = "tokenformer"
    num_layers: PositiveInt
    hidden_size: PositiveInt
    """Model width."""
    num_heads: PositiveInt
    vocab_size: Count | None = None
    """Rows of the embedding; by default the vocabulary that `data.vocab_size` trains."""
    ffn_size: PositiveInt | None = None
    """Inner width of a transformer's MLP; by default 4 x hidden_size."""
    score_function: ScoreFunction = "l2_norm_gelu"
    rotary_fraction: float = Field(default=0.25, ge=0.0, le=1.0)
    rotary_base: PositiveFloat = 10000.0


class StageBlock(_Block):
    """One stage: a size, trained for a budget."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Label, unique in the ladder, used in paths and tables."""
    attention_tokens: Count | None = None
    """Parameter tokens in each of Q, K, V and O."""
    ffn_tokens: Count | None = None
    """Parameter tokens in the FFN."""
    train_tokens: Count | None = None
    """Data tokens of this stage; rounded to whole steps. Either this or train_steps."""
    train_steps: Count | None = None
    """Optimizer steps of this stage."""

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if (self.train_tokens is None) == (self.train_steps is None):
            raise ValueError("needs either train_tokens or train_steps, not both")
        return self


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
    """ladder: one warm-up at the start and one decay at the end of all stages. stage: each stage its own (the paper)."""
    warmup_steps: NonNegativeInt = 0
    decay: float = Field(default=0.2, ge=0.0, le=1.0)
    """Share of the span that the decay takes (`wsd`)."""


class OptimizerBlock(_Block):
    """AdamW, with the paper's values as defaults."""

    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.9, 0.95]
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
    """Share of the stage over which the new keys rise from 0 to 1 (FACTS: 30 to 50 steps did best)."""


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
    budgets: Annotated[list[PositiveFloat], Field(min_length=1)] = [1.0]
    """Its FLOPs, as multiples of the whole ladder's; one run each. Three or more let the report find equal loss."""


class LaunchBlock(_Block):
    """How the work is laid on the machine. May change between a run and its resumption."""

    devices: Literal["auto"] | PositiveInt = "auto"
    """Ranks on this machine. auto: every GPU; without a GPU one rank with all cores."""
    zero_stage: Literal[1, 2, 3] = 1
    """DeepSpeed ZeRO: 1 shards optimizer state, 2 gradients too, 3 parameters too."""
    micro_batch_size: Count | None = None
    """Sequences a forward pass on one device; by default as many as a step gives it."""

    @field_validator("zero_stage", mode="before")
    @classmethod
    def _no_zero_stage_0(cls, value: Any) -> Any:
        if value == 0 and value is not False:
            raise ValueError("ZeRO 0 keeps no master weights that growth could read; use 1, which costs no more")
        return value


class Schedule(_Block):
    """A whole growth schedule, with every default written out."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; by default the file's."""
    seed: NonNegativeInt = 0
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
        for problem in _impossible(self):
            raise ValueError(problem)
        return self


def _impossible(schedule: Schedule) -> list[str]:
    """Combinations that no single field can see, each as `path = value: what is allowed`."""
    found = []
    model, stages = schedule.model, schedule.stages
    num_tokens = schedule.data.num_tokens
    if model.vocab_size is None and num_tokens is None:
        found.append("model.vocab_size: is missing; data.tokenizer is a given one, so say how many tokens it has")
    if model.vocab_size and num_tokens and model.vocab_size < num_tokens:
        found.append(f"model.vocab_size = {model.vocab_size}: must be at least the tokenizer's {num_tokens}")
    if model.hidden_size % model.num_heads:
        found.append(f"model.num_heads = {model.num_heads}: must divide model.hidden_size {model.hidden_size}")
    else:
        turned = int(model.hidden_size // model.num_heads * model.rotary_fraction)
        if model.rotary_fraction and (turned < 2 or turned % 2):
            found.append(
                f"model.rotary_fraction = {model.rotary_fraction}: turns {turned} of the "
                f"{model.hidden_size // model.num_heads} dimensions of a head; it must come to an even number, 2 or more"
            )
    for i, stage in enumerate(stages):
        here = f"stages.{i}"
        if stage.name in [other.name for other in stages[:i]]:
            found.append(f"{here}.name = {stage.name!r}: another stage has that name; each needs its own")
        for field in ("attention_tokens", "ffn_tokens"):
            value = getattr(stage, field)
            if model.family == "tokenformer" and value is None:
                found.append(f"{here}.{field}: is missing; a tokenformer's stage says how many parameter tokens it has")
            if model.family == "transformer" and value is not None:
                found.append(f"{here}.{field} = {value}: a transformer has no parameter tokens; leave it out")
            before = getattr(stages[i - 1], field) if i else None
            if value is not None and before is not None and value < before:
                found.append(f"{here}.{field} = {value}: shrinks from {before}; growth only adds, so {before} or more")
        if i and model.family == "tokenformer" and stage.attention_tokens == stages[i - 1].attention_tokens:
            if stage.ffn_tokens == stages[i - 1].ffn_tokens:
                found.append(f"{here}: is as large as the stage before it; add tokens, or make them one stage")
        if stage.train_tokens is not None:
            step = schedule.training.batch_size * schedule.training.sequence_length
            if stage.train_tokens < step:
                found.append(f"{here}.train_tokens = {stage.train_tokens}: one step alone takes {step}; that or more")
    if len(stages) > 1 and model.family == "transformer":
        found.append(f"stages: {len(stages)} entries, but a transformer does not grow; it takes one stage")
    if len(stages) > 1 and model.score_function == "softmax":
        found.append(
            "model.score_function = 'softmax': cannot be grown by zero keys, since exp(0) = 1; "
            "l2_norm_gelu and gelu_l2_norm can"
        )
    micro, batch = schedule.launch.micro_batch_size, schedule.training.batch_size
    if micro and batch % micro:
        found.append(f"launch.micro_batch_size = {micro}: must divide training.batch_size {batch}")
    return found


def find_schedule(reference: str) -> Path:
    """The file that `reference` means: a path that exists, else a shipped name (`quickstart`); ScheduleError if neither."""
    path = Path(reference)
    if path.is_file():
        return path.resolve()
    stem = reference.removeprefix("schedules/").removesuffix(".yaml")
    shipped = SHIPPED / f"{stem}.yaml"
    if shipped.is_file() and shipped.is_relative_to(SHIPPED) and ".." not in stem:
        return shipped
    names = sorted(str(p.relative_to(SHIPPED))[: -len(".yaml")] for p in SHIPPED.rglob("*.yaml"))
    close = difflib.get_close_matches(Path(stem).name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ScheduleError(f"{reference}: no such file, and no shipped schedule of that name ({', '.join(names)}){hint}")


def load_schedule(reference: str, overrides: Sequence[str] = ()) -> Schedule:
    """The schedule at a path or of a shipped name, with hydra overrides (`stages.0.train_tokens=200k`) applied.

    Its name is filled in. Raises ScheduleError with everything that is wrong with it.
    """
    path = find_schedule(reference)
    return parse_schedule(_compose(path, overrides), label=reference, default_name=path.stem)


def parse_schedule(data: Any, *, label: str, default_name: str) -> Schedule:
    """A schedule from plain data (`label` is what messages call it); ScheduleError where it cannot be used."""
    try:
        schedule = Schedule.model_validate(data)
    except ValidationError as error:
        lines = [_describe(problem) for problem in error.errors()]
        raise ScheduleError("\n".join(f"{label}: {line}" for line in lines)) from None
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: {default_name!r} cannot name a run; set name to letters, digits, . _ -"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


def _compose(path: Path, overrides: Sequence[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    written = [text if text.startswith(("+", "~")) else f"++{text}" for text in overrides]
    for text in overrides:
        if "=" not in text and not text.startswith("~"):
            raise ScheduleError(f"{text!r} is no override; write key=value, for example training.batch_size=64")
    try:
        with initialize_config_dir(config_dir=str(path.parent), version_base="1.3"):
            composed = compose(config_name=path.name, overrides=written)
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        # hydra wraps the reason; the innermost cause says what the user can mend
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split())
        raise ScheduleError(f"{path}: {reason}") from error


def _describe(problem: Any) -> str:
    """One validation problem as `dotted.path = value: what is allowed`."""
    location = [part for part in problem["loc"] if not _is_union_label(part)]
    path = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        return f"{path} = {problem['input']!r}: {_unknown_key(location)}"
    if problem["type"] == "missing":
        return f"{path}: is missing"
    message = problem["msg"].removeprefix("Value error, ")
    if not path:
        return message
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        return f"{path}: {message}"
    return f"{path} = {problem['input']!r}: {message[0].lower()}{message[1:]}"


def _unknown_key(location: list[Any]) -> str:
    key, parents = str(location[-1]), location[:-1]
    known = list(_fields_at(parents))
    if parents and parents[0] == "stages" and key in ModelBlock.model_fields:
        return f"a stage cannot change this; growth adds tokens and keeps the rest, so set model.{key} for all stages"
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"there is no such key; {hint}allowed here: {', '.join(known)}"


def _fields_at(location: list[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = dict(Schedule.model_fields)
    for part in location:
        if isinstance(part, int):
            continue
        block = _block_in(fields[part].annotation) if part in fields else None
        fields = dict(block.model_fields) if block else {}
    return fields


def _block_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (list, Union, UnionType, Annotated):
        return next((block for arg in get_args(annotation) if (block := _block_in(arg))), None)
    return None


def _is_union_label(part: Any) -> bool:
    return isinstance(part, str) and (part.startswith(("literal[", "constrained-", "function-")) or part == "int")
