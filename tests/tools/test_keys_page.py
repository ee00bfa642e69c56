"""Every key of a schedule is explained, and every example of docs/keys.md works."""

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf
from pydantic import BaseModel

from growctl.schedule.blocks import DECODER_KEYS, RotaryScalingBlock
from growctl.schedule.json_schema import schedule_schema
from tests.growctl.bases import base_config
from tests.growctl.schedules import changed, parse
from tools.keys import Key, every_key

SCHEMA = Draft202012Validator(schedule_schema())
KEYS = {key.path: key for key in every_key()}
DECODER = {"model.family": "decoder", "growth": {}, "controls": []}
TWO_STAGES = {"stages": [{"name": "small", "ffn_tokens": 64, "train_steps": 20}, {"name": "large", "train_steps": 20}]}
START = {
    "path": "/runs/quickstart",
    "manifest": "0" * 64,
    "kind": "parameters",
    "model_json": base_config().model_dump_json(),
}
SIZES = [{"name": f"s{size}", "attention_tokens": 4 * size, "ffn_tokens": 8 * size} for size in (1, 2, 3)]
SHARED = {"stages": [SIZES[0] | {"until": 0.5}, SIZES[2]], "training.ladder_tokens": "1B", "controls": []}
BASE_OF_THE_RUN = {"start.base": START}
IMAGES = {
    "data": {"images": {"source": "/data/images", "num_classes": 10}},
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "image": {"size": 32, "patch": 16}},
    "training": {"batch_size": 8},
}
MUON = {"optimizer.name": "muon", "optimizer.gradient_clipping": 0.0}
SOURCES = [{"name": name, "source": f"/data/{name}", "weight": 1} for name in ("books", "code")]
ROUTING = {"groups": 8, "read": 2}
GROUPS = {
    "stages": [{"name": f"{n}", "attention_tokens": 8 * n, "ffn_tokens": 8 * n, "train_steps": 20} for n in (1, 2)]
}
MIXED = {"data": {"tokenizer": "EleutherAI/gpt-neox-20b", "mixture": SOURCES}, "model.vocab_size": 50_432}
SCALED = {"model.rotary_scaling": {"kind": "llama3", "factor": 2.0, "trained_length": 16}}
NEEDED: dict[str, dict[str, Any]] = {
    "data.tokenizer": {"data.vocab_size": None, "model.vocab_size": 50_432},
    "data.begin_of_text": {"data.tokenizer": "gpt2", "data.vocab_size": None, "model.vocab_size": 50_432},
    "data.most_bad_records": {"data.on_bad_record": "skip"},
    "data.when_exhausted": MIXED,
    "data.images.most_bad_records": IMAGES | {"data.images.on_bad_record": "skip"},
    "data.mixture.N.most_bad_records": MIXED | {"data.mixture.0.on_bad_record": "skip"},
    "stages.N.mixture": MIXED,
    "start.checkpoint": BASE_OF_THE_RUN,
    "start.run": BASE_OF_THE_RUN,
    "start.stage": BASE_OF_THE_RUN | {"start.run": "quickstart"},
    "start.flops": BASE_OF_THE_RUN | {"start.run": "quickstart"},
    "model.attention_window": {"training.sequence_length": 256, "stages.0.train_tokens": "10M"},
    "model.full_attention_every": {"model.attention_window": 8},
    **dict.fromkeys(map("model.rotary_scaling.{}".format, RotaryScalingBlock.model_fields), SCALED),
    **dict.fromkeys(
        map("model.{}".format, ("ffn_tokens", *DECODER_KEYS)), DECODER | TWO_STAGES | {"stages.1.batch_size": 16}
    ),
    "stages.N.layers": {"controls": []},
    "stages.N.sequence_length": {"stages.1.batch_size": 8},
    "stages.N.num_layers": DECODER | TWO_STAGES,
    "stages.N.hidden_size": DECODER | TWO_STAGES,
    "stages.N.num_heads": DECODER | TWO_STAGES,
    "stages.N.train_tokens": {"stages.1.train_steps": None},
    "stages.N.until": SHARED | {"stages": [SIZES[0] | {"until": 0.5}, *SIZES[1:]]},
    "training.ladder_tokens": SHARED,
    "training.ladder_flops": SHARED | {"training.ladder_tokens": None},
    "stages.N.ramp_steps": {"stages.1.train_steps": "20k"},
    "controls.N.depths": {"controls.0": {"kind": "best-scratch"}},
    "stages.N.release": {"learning_rate.decay": 0.0},
    "stages.N.release.decay": {"learning_rate.decay": 0.0},
    "training.sequence_length": {"stages.0.train_tokens": "10M"},
    "training.batch_size": {"stages.0.train_tokens": "10M"},
    "learning_rate.warmup_steps": {"stages.1.train_steps": "20k"},
    "growth.init": {"growth.tau": "per-generation"},
    "growth.tau": {"growth.init": "zero-key"},
    "growth.copy_noise": {
        "growth": {"init": "copy", "tau": "recompute", "allow_jump": True},
        "stages.1": {"name": "large", "attention_tokens": 8, "ffn_tokens": 16, "train_steps": 20},
    },
    "growth.when": {"growth.slope": 1e-15, "evaluation.every": 2},
    "growth.slope": {"growth.when": "slope", "evaluation.every": 2},
    **{
        f"{block}.routing.{key}": GROUPS | {f"{block}.routing": ROUTING}
        for block in ("model", "growth")
        for key in ROUTING
    },
    "optimizer.momentum": MUON,
    "optimizer.muon_lr_scale": MUON,
}
"""The other keys that some examples need: those that only make sense together with them."""
UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "m": 60, "h": 3600, "GB": 1e9, "GiB": 2**30}


def set_to_its_example(key: Key) -> dict[str, Any]:
    """The small schedule with the line of YAML that the page shows for `key`."""
    assert key.example, f"{key.path} has no example"
    [(name, value)] = OmegaConf.to_container(OmegaConf.create(key.example)).items()
    assert name == key.name
    blocks = {"data.mixture.N": MIXED, "data.images": IMAGES, "model.image": IMAGES}
    of_a_block = next((needed for block, needed in blocks.items() if key.path.startswith(block)), {})
    return changed(NEEDED.get(key.path, of_a_block) | {in_small_schedule(key.path): value})


def in_small_schedule(path: str) -> str:
    """The dotted path with the number of an entry in place of N."""
    return path.replace("stages.N", "stages.1").replace(".N", ".0")


def value_at(schedule: Any, path: str) -> Any:
    """The value at a dotted path in a schedule, or in its plain data."""
    for part in in_small_schedule(path).split("."):
        schedule = schedule[int(part)] if isinstance(schedule, list) else dict(schedule)[part]
    return schedule


def in_base_units(value: Any) -> Any:
    """The value of an example in tokens, steps, seconds, bytes or FLOPs."""
    if isinstance(value, dict):
        return {key: in_base_units(below) for key, below in value.items()}
    suffixed = re.fullmatch(rf"([\d.]+)({'|'.join(UNITS)})", str(value))
    return round(float(suffixed[1]) * UNITS[suffixed[2]]) if suffixed else value


def test_no_key_lacks_a_description_an_example_or_the_unit_of_its_numbers() -> None:
    assert {"stages.N.train_tokens", "growth.old_tokens", "launch.slurm.time_limit", "seed"} <= KEYS.keys()
    assert [path for path, key in KEYS.items() if not key.description.endswith(".")] == []
    assert [path for path, key in KEYS.items() if key.example is None] == []
    number = re.compile(r"(^| )(number|integer|duration|size)( |$)")
    assert [path for path, key in KEYS.items() if number.search(key.allowed) and "unit" not in key.schema] == []


@pytest.mark.parametrize("path", KEYS)
def test_a_schedule_with_a_keys_example_holds_that_value(path: str) -> None:
    written = set_to_its_example(KEYS[path])
    found = value_at(parse(written), path)
    held = found.model_dump(exclude_unset=True) if isinstance(found, BaseModel) else found
    example = value_at(written, path)
    assert held == (example if isinstance(held, str) else in_base_units(example))


def test_editors_accept_every_example() -> None:
    for path, key in KEYS.items():
        data = set_to_its_example(key)
        data.get("start", {}).pop("base", None)  # users never write it
        assert not list(SCHEMA.iter_errors(data)), path
