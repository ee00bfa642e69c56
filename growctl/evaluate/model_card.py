"""Writes the model card of an export: what `growctl show` prints, and the report's verdict."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from growctl.evaluate.record import place_of
from growctl.runs.show import CheckpointFacts, cost_rows, fact_rows, generation_rows, lineage_rows, source_rows
from stages.corpus.location import LOCAL_SCHEMES
from stages.huggingface.record import HuggingFaceExport

NOT_OF_THE_MODEL = ("dataset", "tokenizer", "files")
"""Rows of `growctl show` that the card leaves out, or shows elsewhere."""

_CARD = """---
library_name: transformers
pipeline_tag: {task}
tags:
- {tag}
- growctl
---

# {name}

{about} Exported by growctl; the lineage below says how it was made.

## Use

{use}

## Model

{model}

## Lineage

{lineage}

## Training cost

{cost}

## Training data

{data}

## Results

{results}

## License

Not chosen yet. Name one here, and as `license:` in the metadata at the top of this file.
"""
_TEXT = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

path = {path}  # this folder, or its name on the Hub
tokenizer = AutoTokenizer.from_pretrained(path{trust})
model = AutoModelForCausalLM.from_pretrained(path{trust})
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```

Needs Transformers 5.19 or newer. Its context is {context_length:,} tokens."""
_IMAGES = """```python
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

path = {path}  # this folder, or its name on the Hub
processor = AutoImageProcessor.from_pretrained(path, backend="pil")
model = AutoModelForImageClassification.from_pretrained(path{trust})
inputs = processor(Image.open("image.png").convert("{mode}"), return_tensors="pt")
print(model.config.id2label[model(**inputs).logits.argmax().item()])
```

Needs Transformers 5.19 or newer, and Pillow. This reads images as growctl's evaluation does. Without `convert`, other
colours and transparency come out differently; without `backend="pil"`, torchvision resizes with other rounding."""
_DECODER = "A Transformer {kind}: {architecture} of Transformers."
_TOKENFORMER = (
    "A [Tokenformer](https://arxiv.org/abs/2410.23168): a {kind} that grows by adding parameter tokens. "
    "`modeling_tokenformer.py` in this folder holds the architecture. PEFT adapts parameter tokens through "
    "`target_parameters`, by names such as `ffn.key_tokens`."
)


def model_card(facts: CheckpointFacts, export: HuggingFaceExport) -> str:
    """The README.md of an export, in Markdown: what is known of the checkpoint, its training and its run."""
    of_sources, own_code, image = source_rows(facts), export.needs_trust_remote_code, facts.model.get("image")
    model = [row for row in fact_rows(facts) if row[0] not in NOT_OF_THE_MODEL and row not in of_sources]
    model += [
        ("class", export.architecture),
        ("stored as", f"{export.dtype}, {export.weight_bytes:,} bytes in {export.num_weight_files} file(s)"),
        ("compared with the checkpoint", str(export.check)),
    ]
    data = [
        *([("source", public_source(facts.text.source))] if facts.text.source else []),
        *of_sources,
        (f"fingerprint of its {'images' if image else 'tokens'}", facts.dataset_fingerprint or "unknown"),
        *([] if image else [("sha256 of its tokenizer.json", facts.tokenizer_sha256 or "unknown")]),
    ]
    generations = [_table(generation_rows(facts))] if facts.generations else []
    name = export.path.absolute().name
    about, kind = _TOKENFORMER if own_code else _DECODER, "classifier of images" if image else "language model"
    card = _CARD.replace("{about}", about).replace("{use}", _IMAGES if image else _TEXT)
    return card.format(
        task="image-classification" if image else "text-generation",
        tag=export.architecture.partition("For")[0].lower(),
        name=_plain(name),
        kind=kind,
        architecture=export.architecture,
        path=json.dumps(name, ensure_ascii=False),
        trust=", trust_remote_code=True" if own_code else "",
        context_length=export.context_length,
        mode="L" if image and image["channels"] == 1 else "RGB",
        model="\n\n".join([_table([("", ""), *model]), *generations]),
        lineage="\n".join(f"{number}. {_plain(': '.join(row))}" for number, row in enumerate(lineage_rows(facts), 1)),
        cost=_table([("", ""), *cost_rows(facts)]),
        data=_table([("", ""), *data]),
        results="\n\n".join(_results(facts.path)),
    )


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

    def public(part: str) -> str:
        scheme, separator, rest = part.partition("://")
        if not separator or scheme in LOCAL_SCHEMES:
            return Path(rest or scheme).name or "a local folder"
        return re.sub(r"(?<=//)[^/]*@|[?#].*", "", part)

    return "::".join(map(public, source.split("::")))


def _results(checkpoint: Path) -> Iterator[str]:
    """The verdicts of the report of the run that the checkpoint is in."""
    from growctl.analysis.results import results
    from growctl.ledger.file import LedgerError
    from growctl.runs.find import find_runs

    place, headlines = place_of(checkpoint), []
    if place is not None:
        run = place.run.directory
        with suppress(LedgerError):
            headlines = [line for line in results(find_runs(run.parent, [run.name])).headlines if line.opponent]
    if not headlines:
        yield "No report: the checkpoint was exported from outside its run."
    for headline in headlines:
        yield f"### {_plain(f'{headline.ladder} against {headline.opponent}')}"
        sentences = (headline.missing, headline.question, headline.claim, *headline.cautions)
        yield "\n".join(f"- {_plain(sentence)}" for sentence in sentences if sentence)
