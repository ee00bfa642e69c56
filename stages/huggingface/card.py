"""Writes the model card of an export to Hugging Face, from facts that are handed down."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stages.huggingface.export import HuggingFaceExport

PAPER = "https://arxiv.org/abs/2410.23168"


@dataclass(frozen=True)
class CardFacts:
    """What a model card says beyond the export itself. All texts are plain, not Markdown."""

    name: str
    model: Sequence[tuple[str, str]]
    """Rows of labels and words: sizes and precision."""

    generations: Sequence[Sequence[str]]
    """Rows of cells, the header first; empty for a Transformer."""

    lineage: Sequence[str]
    """What was done to the model, oldest first, a line each."""

    cost: Sequence[tuple[str, str]]
    """Rows of labels and words. A row without a label continues the one before."""

    data: Sequence[tuple[str, str]]
    """Rows of labels and words that identify the training data and the tokenizer."""

    verdicts: Sequence[tuple[str, Sequence[str]]]
    """From the report of the run that the checkpoint is in: a heading and sentences for each comparison."""

    num_padding_rows: int
    """Rows of the embedding that no token has."""


def model_card(facts: CardFacts, export: HuggingFaceExport) -> str:
    """The content of README.md, in Markdown."""
    sections = [
        _metadata(export),
        f"# {_plain(facts.name)}",
        _introduction(export),
        "## Use",
        *_use(facts, export),
        "## Model",
        _table([("", ""), *facts.model, *_stored(export)]),
        *([_table(facts.generations)] if facts.generations else []),
        "## Lineage",
        "\n".join(f"{number}. {_plain(line)}" for number, line in enumerate(facts.lineage, 1)),
        "## Training cost",
        _table([("", ""), *facts.cost]),
        "## Training data",
        _table([("", ""), *facts.data]),
        "## Results",
        *_results(facts),
        "## License",
        "Not chosen yet. Name one here, and as `license:` in the metadata at the top of this file.",
    ]
    return "\n\n".join(sections) + "\n"


def _metadata(export: HuggingFaceExport) -> str:
    family = "tokenformer" if export.own_code else "gpt_neox"
    lines = ("---", "library_name: transformers", "pipeline_tag: text-generation", "tags:", f"- {family}", "- growctl")
    return "\n".join((*lines, "---"))


def _introduction(export: HuggingFaceExport) -> str:
    if not export.own_code:
        return "A Transformer language model in the architecture GPT-NeoX, trained and exported by growctl."
    return (
        f"A [Tokenformer]({PAPER}): a language model that grows by adding parameter tokens. Trained and exported by "
        "growctl. The architecture is not part of Transformers; `modeling_tokenformer.py` in this folder holds it."
    )


def _use(facts: CardFacts, export: HuggingFaceExport) -> Iterator[str]:
    trust = ", trust_remote_code=True" if export.own_code else ""
    yield f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer

path = {json.dumps(facts.name, ensure_ascii=False)}  # this folder, or its name on the Hub
tokenizer = AutoTokenizer.from_pretrained(path{trust})
model = AutoModelForCausalLM.from_pretrained(path{trust})
inputs = tokenizer(["Once upon a time"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=50)))
```"""
    yield f"Needs Transformers 5.19 or newer. Training sequences had {export.context_length:,} tokens."
    if facts.num_padding_rows:
        yield (
            f"The embedding has {facts.num_padding_rows:,} rows that no token has. `generation_config.json` suppresses "
            "their ids. Programs that do not read `suppress_tokens` must leave them out themselves."
        )
    if export.own_code:
        tokens = "`ffn.key_tokens_0` (of generation 0)" if export.keeps_generations else "`ffn.key_tokens`"
        yield (
            f"Parameter tokens are raw parameters. PEFT adapts them through `target_parameters`, by names such as "
            f"{tokens}."
        )


def _stored(export: HuggingFaceExport) -> Iterator[tuple[str, str]]:
    yield "class", export.architecture
    yield "stored as", f"{export.dtype}, {export.weight_bytes:,} bytes in {len(export.weight_files)} file(s)"
    if export.own_code:
        yield "generations", "kept apart" if export.keeps_generations else "joined, with their factors multiplied in"
    check = export.check
    if check is None or check.difference is None:
        reason = f": {check.why_not}" if check else ""
        yield "compared with the checkpoint", f"no{reason}"
    else:
        yield (
            "compared with the checkpoint",
            f"Transformers {check.transformers} computes its logits; the largest difference in float32 is "
            f"{check.difference:.2g} ({check.allowed:.2g} allowed)",
        )


def _results(facts: CardFacts) -> Iterator[str]:
    if not facts.verdicts:
        yield "No report: the checkpoint was exported from outside its run."
    for heading, sentences in facts.verdicts:
        yield f"### {_plain(heading)}"
        yield "\n".join(f"- {_plain(sentence)}" for sentence in sentences)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of `rows`, the header first."""
    header, *body = ([_plain(cell) for cell in row] for row in rows)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: str) -> str:
    """`text` as Markdown that shows it as it is, on one line."""
    for special in "\\`*_[]<>|":
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split())
