"""Small ladders for tests of growth, each grown by a policy."""

from typing import Any

from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule
from model.tokenformer_config import TokenformerConfig
from tests.growctl.schedules import BASE, parse

DECODER: dict[str, Any] = {
    "model.family": "decoder",
    "controls": [],
    "stages": [{"name": "small", "ffn_tokens": 128, "train_steps": 20}, {"name": "large", "train_steps": 20}],
}
ONE_DECODER: dict[str, Any] = DECODER | {"stages": DECODER["stages"][:1]}


def ladder(*sizes: tuple[Any, ...], growth: dict[str, Any] | None = None, **blocks: Any) -> Schedule:
    """A tokenformer of 3 layers with those attention and FFN tokens (and layers) a stage, 20 steps each."""
    fields = ("attention_tokens", "ffn_tokens", "layers")
    stages = [
        {"name": f"stage-{i}", "train_steps": 20} | dict(zip(fields, size, strict=False))
        for i, size in enumerate(sizes)
    ]
    model = {"num_layers": 3, "hidden_size": 32, "num_heads": 2}
    data = {name: BASE[name] for name in ("data", "training", "learning_rate")} | {"evaluation": {"every": 2}}
    return parse(data | {"model": model, "stages": stages, "growth": growth or {}} | blocks)


def decoder_ladder(*stages: dict[str, Any], growth: dict[str, Any], **blocks: Any) -> Schedule:
    """A decoder of 2 layers, width 32, 2 heads and 128 FFN units, from the first stage on."""
    entries = [{"name": f"stage-{i}", "train_steps": 20} | stage for i, stage in enumerate(stages)]
    entries[0].setdefault("ffn_tokens", 128)
    model = {"family": "decoder", "num_layers": 2, "hidden_size": 32, "num_heads": 2}
    data = {name: BASE[name] for name in ("data", "training", "learning_rate")}
    return parse(data | {"model": model, "stages": entries, "growth": growth} | blocks)


def last_model(schedule: Schedule) -> TokenformerConfig:
    model = plan_stages(schedule)[-1].model
    assert isinstance(model, TokenformerConfig)
    return model
