"""Drafts a schedule that grows a checkpoint, imported or not, and trains it further: `growctl init --from`."""

import json
import math
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator

from growctl.draft.document import RULES, filled_in
from growctl.draft.recipe import DECAY_SHARE, RAMP_SHARE, AnyDraft, WishOptions, batch_sequences, peak_rate
from growctl.draft.text_source import splits, text_source
from growctl.find_checkpoint import find_checkpoint
from growctl.ladder.controls import MOST_LAYERS
from growctl.ladder.warnings import OPTIMAL_TOKENS
from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import DECODER_KEYS, SHARED_KEYS
from growctl.schedule.fields import Count, parse_count
from growctl.schedule.files import SHIPPED, choices
from growctl.schedule.start_block import BaseBlock, StartBlock, describe_start
from growctl.text.formatting import short_count
from model.config_growth import grow_config
from model.errors import UserError
from model.parameter_names import OptimizerName
from model.shapes import ModelConfig, num_parameters
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint.manifest import read_manifest
from stages.stage_dir import TOKENIZER_NAME

PEAK_SHARE = 0.5
"""The peak, as a share of the one that the checkpoint was trained with, or of the one that its size suits."""

REPLAY_SHARE = 0.05
"""Share of `--replay`: enough where the new text is like the old one; 0.25 or more where it is not (arXiv
2403.08763)."""

LONGEST_CONTEXT = 2048
"""The longest context that a draft trains with, however long the checkpoint's is."""

_RAMP = f"  ramp: {RAMP_SHARE:g}  # of the stage's steps, over which the keys of new tokens rise from 0"
_CONTROLS = "# What growing is compared with: the checkpoint trained further as it is for the same FLOPs"


def _is_size(text: str) -> str:
    if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?x", text):
        return text
    try:
        parse_count(text)
    except ValueError as error:
        raise ValueError(f"{error}; or a factor, such as 2x") from None
    return text


class GrowWish(WishOptions):
    """The options of `growctl init --from`; `start` is `--from`."""

    start: str
    params: Annotated[str, AfterValidator(_is_size)]
    """Parameters in the end: a count, or a factor such as 2x."""

    tokens: Count | None = None
    """Data tokens from now on."""

    replay: str | None = None
    """More of the text that the checkpoint has read, or text like it, to mix in."""


@dataclass(frozen=True, kw_only=True)
class GrowOn(AnyDraft):
    """One stage that grows a checkpoint and trains it further."""

    wish: GrowWish
    base: BaseBlock
    sizes: dict[str, int]
    """What the stage sets."""

    grown: ModelConfig

    @property
    def num_parameters(self) -> int:
        """Parameters in the end."""
        return num_parameters(self.grown)

    @property
    def optimizer(self) -> OptimizerName:
        """The one that trained the checkpoint; AdamW if that is not known, as it trained most models that exist."""
        trained = [entry for entry in read_manifest(Path(self.base.path)).lineage.history if entry.operation == "train"]
        used = trained[-1].determined_by.get("optimizer", {}) if trained else {}
        return "muon" if used.get("name") == "muon" and self.sharding[1] == "none" else "adamw"

    @property
    def peak(self) -> float:
        """The learning rate after the warm-up, low so that training unlearns little."""
        whole = _peak(Path(self.base.path)) or peak_rate(self.num_parameters, self.optimizer)
        return float(f"{PEAK_SHARE * whole:.2g}")

    def text(self) -> str:
        """The whole schedule."""
        model, path = self.base.model, Path(self.base.path)
        is_decoder, is_known = not isinstance(model, TokenformerConfig), self.base.flops is not None
        keys = DECODER_KEYS if is_decoder else ("score_function",)
        values = model.model_dump(mode="json", include={"family", "vocab_size", *SHARED_KEYS, *keys}, exclude_none=True)
        whose = "the checkpoint's" if _peak(path) else "the peak that suits this size from scratch"
        name, tokens = short_count(self.num_parameters).lower(), short_count(self.train_tokens[0])
        sizes = ", ".join(f"{key}: {value}" for key, value in self.sizes.items())
        scratch = ", and the large model from scratch" if is_known else "; what it has cost is not known"
        more = f"  - kind: {model.family}-scratch\n" if is_known else ""
        about = f"A second warm-up and decay. The peak is {PEAK_SHARE:g} of {whose}, so training unlearns little."
        why = "As the checkpoint was trained." if self.optimizer == "muon" else "Most models were trained with it."
        growth = "  depth: interleave" if is_decoder else _RAMP
        rules = RULES.format(draft=self, about=about, decay=DECAY_SHARE, why=why, growth=growth)
        return filled_in(
            self,
            [self.base.num_parameters, self.num_parameters],
            data=textwrap.indent(self._data(path), "  "),
            origin="That of the checkpoint.",
            model=textwrap.indent(yaml.safe_dump(values | {"num_layers": model.num_layers}), "  "),
            stages=f"  - {{name: {name}, {sizes}, train_tokens: {tokens}}}  # {self.num_parameters:,}\n",
            rules=rules,
            controls=f"{_CONTROLS}{scratch}.\ncontrols:\n  - kind: ungrown\n{more}",
        )

    def _data(self, path: Path) -> str:
        """The lines of the `data` block."""
        given, tokenizer = self.source.vocabularies.given, path / TOKENIZER_NAME
        own = ""
        if tokenizer.exists() and not given:
            own = f"tokenizer: {json.dumps(str(tokenizer))}  # the checkpoint's\n"
            tokens = read_manifest(path).text.model_dump(include={"begin_of_text", "end_of_text"}, exclude_none=True)
            own += "".join(f"{key}: {json.dumps(token, ensure_ascii=False)}\n" for key, token in tokens.items())
        if self.wish.replay is None:
            size = self.source.size
            counted = splits(self.source.source, size, self.base.model.vocab_size) if size else ""
            return self.source.text + own + counted + "# --replay mixes in text that the checkpoint has read.\n"
        texts = {"new": (1 - REPLAY_SHARE, str(self.wish.data)), "replay": (REPLAY_SHARE, self.wish.replay)}
        mixture = [
            {"name": name, "weight": weight}
            | ({"corpus": text} if text in choices("data", [SHIPPED]) else {"source": text_source(text).source})
            for name, (weight, text) in texts.items()
        ]
        return own + yaml.safe_dump({"mixture": mixture}, sort_keys=False)


def _peak(path: Path) -> float | None:
    """The peak rate of the run whose checkpoint this is; None outside one."""
    run = RunPaths(path.parents[2]) if len(path.parents) > 2 else None
    if run is None or path.parents[1] != run.stages or not run.schedule.is_file():
        return None
    schedule: dict[str, Any] = yaml.safe_load(run.schedule.read_text(encoding="utf-8"))
    return float(schedule["learning_rate"]["peak"])


def grow_on(wish: GrowWish, runs_dir: Path) -> GrowOn:
    """Follows the rules from a wish to a draft. Raises UserError."""
    path = find_checkpoint(wish.start, runs_dir, tell=lambda line: None).absolute()
    base = describe_start(StartBlock(checkpoint=str(path)), runs_dir)
    if base.model.image:
        raise UserError(f"--from {wish.start}: is a model of images; write its schedule by hand")
    if wish.data is None:
        raise UserError("--data is missing: the text to train on")
    is_factor = wish.params.endswith("x")
    wanted = round(float(wish.params[:-1]) * base.num_parameters) if is_factor else parse_count(wish.params)
    if wanted <= base.num_parameters:
        raise UserError(f"--params {wish.params}: must be above the {base.num_parameters:,} of {wish.start}, or 2x")
    sizes, grown = _grown(base.model, wanted)
    optimal = OPTIMAL_TOKENS * (num_parameters(grown) - base.num_parameters)
    tokens = wish.tokens or parse_count(short_count(round(optimal)))
    source = text_source(wish.data)
    try:
        text_source(wish.replay or wish.data)
    except UserError as error:
        raise UserError(str(error).replace("--data", "--replay", 1)) from None
    if not (source.vocabularies.given or (Path(base.path) / TOKENIZER_NAME).exists()):
        raise UserError(f"--from {wish.start}: has no tokenizer; give a dataset that was prepared with its own")
    known = base.sequence_length or read_manifest(path).text.context_length
    length = min(known or 1024, LONGEST_CONTEXT)
    draft = GrowOn(
        wish=wish,
        source=source,
        sequence_length=length,
        batch_size=batch_sequences(num_parameters(grown), tokens, length),
        train_tokens=[tokens],
        start=base.path,
        base=base,
        sizes=sizes,
        grown=grown,
    )
    draft.require_steps(optimal)
    return draft


def _grown(model: ModelConfig, wanted: int) -> tuple[dict[str, int], ModelConfig]:
    """The keys of a stage that come nearest to so many parameters, and its model: more parameter tokens in equal
    proportion, or more layers of a decoder; FFN units if a layer is too much."""
    missing = wanted - num_parameters(model)

    def per(**added: Any) -> int:
        return num_parameters(grow_config(model, **added)) - num_parameters(model)

    if isinstance(model, TokenformerConfig):
        sizes = {(block.query.num_tokens, block.ffn.num_tokens) for block in model.blocks}
        if len(sizes) != 1:
            raise UserError("--from: its layers differ in size, or there are none; write its schedule by hand")
        [(attention, ffn)] = sizes
        factor = missing / per(attention_tokens=attention, ffn_tokens=ffn)
        wanted_tokens = {"attention_tokens": factor * attention, "ffn_tokens": factor * ffn}
        more: dict[str, Any] = {key: max(1, round(count)) for key, count in wanted_tokens.items()}
        keys = {"attention_tokens": attention + more["attention_tokens"], "ffn_tokens": ffn + more["ffn_tokens"]}
        return keys, grow_config(model, **more)
    if layers := round(missing / per(new_layers=1)):
        if model.num_layers + layers > MOST_LAYERS:
            raise UserError(f"--params: takes {model.num_layers + layers:,} layers; must take {MOST_LAYERS:,} at most")
        return {"num_layers": model.num_layers + layers}, grow_config(model, new_layers=layers)
    units = max(1, math.ceil(missing / per(ffn_tokens=1)))
    return {"ffn_tokens": model.ffn_tokens + units}, grow_config(model, ffn_tokens=units)
