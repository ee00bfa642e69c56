"""Writes the model card of an export: what `growctl show` prints, and the report's verdict."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from growctl.runs.show import CheckpointFacts, cost_rows, fact_rows, generation_rows, lineage_lines, source_rows
from growctl.runs_dir import RunPaths
from stages.corpus.location import LOCAL_SCHEMES
from stages.huggingface.record import HuggingFaceExport

LEVELS_IN_RUN = 3
"""RUN/stages/0-stage/final: how far a run's directory is above a checkpoint in it; one more for a release."""

NOT_OF_THE_MODEL = ("dataset", "tokenizer", "files")
"""Rows of `growctl show` that the card leaves out, or shows elsewhere."""


def model_card(facts: CheckpointFacts, export: HuggingFaceExport) -> str:
    """The README.md of an export, in Markdown: what is known of the checkpoint, its training and its run."""
    of_sources = source_rows(facts)
    rows = [row for row in fact_rows(facts) if row[0] not in NOT_OF_THE_MODEL and row not in of_sources]
    data = [
        *([("source", public_source(facts.text.source))] if facts.text.source else []),
        *of_sources,
        ("fingerprint of its tokens", facts.dataset_fingerprint or "unknown"),
        ("sha256 of its tokenizer.json", facts.tokenizer_sha256 or "unknown"),
    ]
    paragraphs = [
        _METADATA.format("tokenformer" if export.needs_trust_remote_code else "gpt_neox"),
        f"# {_plain(export.path.absolute().name)}",
        _TOKENFORMER if export.needs_trust_remote_code else _TRANSFORMER,
        "## Use",
        *_use(facts, export),
        "## Model",
        _table([("", ""), *rows, *_stored(export)]),
        *([_table(generation_rows(facts))] if facts.generations else []),
        "## Lineage",
        "\n".join(f"{number}. {_plain(line)}" for number, line in enumerate(lineage_lines(facts), 1)),
        "## Training cost",
        _table([("", ""), *cost_rows(facts)]),
        "## Training data",
        _table([("", ""), *data]),
        "## Results",
        *_results(facts.path),
        "## License",
        "Not chosen yet. Name one here, and as `license:` in the metadata at the top of this file.",
    ]
    return "\n\n".join(paragraphs) + "\n"


_METADATA = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- {}
- growctl
---"""
_TRANSFORMER = "A Transformer language model in the architecture GPT-NeoX, trained and exported by growctl."
_TOKENFORMER = (
    "A [Tokenformer](https://arxiv.org/abs/2410.23168): a language model that grows by adding parameter tokens. "
    "Trained and exported by growctl. The architecture is not part of Transformers; `modeling_tokenformer.py` in this "
    "folder holds it."
)


def _use(facts: CheckpointFacts, export: HuggingFaceExport) -> Iterator[str]:
    trust = ", trust_remote_code=True" if export.needs_trust_remote_code else ""
    yield f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer

path = {json.dumps(export.path.absolute().name, ensure_ascii=False)}  # this folder, or its name on the Hub
tokenizer = AutoTokenizer.from_pretrained(path{trust})
model = AutoModelForCausalLM.from_pretrained(path{trust})
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```"""
    yield f"Needs Transformers 5.19 or newer. Training sequences had {export.context_length:,} tokens."
    if export.end_of_text is None:
        yield (
            "No token marks the end of a text: generation goes on up to `max_new_tokens`, and the tokenizer has no "
            "token to pad batches with."
        )
    rows: int = facts.model["vocab_size"]
    if num_padding_rows := rows - min(rows, facts.text.tokenizer_vocab_size or rows):
        yield (
            f"The embedding has {num_padding_rows:,} rows that no token has. `generation_config.json` suppresses "
            "their ids. Programs that do not read `suppress_tokens` must leave them out themselves."
        )
    if export.needs_trust_remote_code:
        tokens = "`ffn.key_tokens_0` (of generation 0)" if export.keeps_generations else "`ffn.key_tokens`"
        yield (
            f"Parameter tokens are raw parameters. PEFT adapts them through `target_parameters`, by names such as "
            f"{tokens}."
        )


def _stored(export: HuggingFaceExport) -> Iterator[tuple[str, str]]:
    yield "class", export.architecture
    yield "stored as", f"{export.dtype}, {export.weight_bytes:,} bytes in {export.num_weight_files} file(s)"
    if export.needs_trust_remote_code:
        yield "generations", "kept apart" if export.keeps_generations else "joined, with their factors multiplied in"
    yield "compared with the checkpoint", str(export.check)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of `rows`, the header first."""
    header, *body = ([_plain(cell) for cell in row] for row in rows)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    """`text` as Markdown that shows it as it is, on one line."""
    return " ".join(re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text).split())


def public_source(source: str) -> str:
    """A `data.source` as a card may show it to anyone: of local paths the last part, of URLs no user or query."""
    return "::".join(_public_part(part) for part in source.split("::"))


def _public_part(part: str) -> str:
    scheme, separator, rest = part.partition("://")
    if not separator or scheme in LOCAL_SCHEMES:
        name = Path(rest or scheme).name
        return name if name not in ("", "..") else "a local folder"
    if scheme in ("http", "https"):
        rest = re.split("[?#]", rest)[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _results(checkpoint: Path) -> Iterator[str]:
    """The verdicts of the report of the run that the checkpoint is in."""
    from growctl.analysis.results import results
    from growctl.ledger.file import LedgerError
    from growctl.runs.find import find_runs

    above = checkpoint.resolve().parents[LEVELS_IN_RUN - 1 : LEVELS_IN_RUN + 1]
    run = next((folder for folder in above if RunPaths(folder).ledger.is_file()), None)
    headlines = []
    if run is not None:
        with suppress(LedgerError):
            headlines = [
                headline for headline in results(find_runs(run.parent, [run.name])).headlines if headline.opponent
            ]
    if not headlines:
        yield "No report: the checkpoint was exported from outside its run."
    for headline in headlines:
        yield f"### {_plain(f'{headline.ladder} against {headline.opponent}')}"
        yield "\n".join(f"- {_plain(sentence)}" for sentence in (headline.claim, *headline.cautions))
