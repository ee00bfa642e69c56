"""Collects what the model card of an export says: what `growctl show` prints, and the report's verdict."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from growctl.runs.show import CheckpointFacts, cost_rows, fact_rows, generation_rows, lineage_lines, source_rows
from growctl.runs_dir import RunPaths
from stages.data.location import LOCAL_SCHEMES

if TYPE_CHECKING:
    from stages.huggingface.card import CardFacts

LEVELS_IN_RUN = 3
"""RUN/stages/0-stage/final: how far a run's directory is above a checkpoint in it; one more for a release."""

OF_DATA = ("dataset", "tokenizer")
OF_FILES = ("files",)


def card_facts(facts: CheckpointFacts, name: str) -> "CardFacts":
    """What the model card of the export `name` says about a checkpoint."""
    from stages.huggingface.card import CardFacts

    rows = dict(fact_rows(facts))
    of_data = (*OF_DATA, *dict(source_rows(facts)))
    vocab_size: int = facts.model["vocab_size"]
    source = facts.text.source
    return CardFacts(
        name=name,
        model=[(label, words) for label, words in rows.items() if label not in (*of_data, *OF_FILES)],
        generations=generation_rows(facts) if facts.generations else [],
        lineage=lineage_lines(facts),
        cost=cost_rows(facts),
        data=[
            *([("source", public_source(source))] if source else []),
            *source_rows(facts),
            ("fingerprint of its tokens", facts.dataset_fingerprint or "unknown"),
            ("sha256 of its tokenizer.json", facts.tokenizer_sha256 or "unknown"),
        ],
        verdicts=_verdicts(facts.path),
        num_padding_rows=vocab_size - min(vocab_size, facts.text.tokenizer_vocab_size or vocab_size),
    )


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


def _verdicts(checkpoint: Path) -> list[tuple[str, tuple[str, ...]]]:
    """The verdicts of the report of the run that the checkpoint is in; none if it is in no run with a ledger."""
    from growctl.analysis.results import results
    from growctl.ledger.file import LedgerError
    from growctl.runs.find import find_runs

    above = checkpoint.resolve().parents
    for folder in above[LEVELS_IN_RUN - 1 : LEVELS_IN_RUN + 1]:
        run = RunPaths(folder)
        if run.ledger.is_file():
            try:
                judged = results(find_runs(folder.parent, [folder.name]))
                named = [(f"{each.ladder} against {each.opponent}", each) for each in judged.headlines if each.opponent]
                return [(heading, (verdict.claim, *verdict.cautions)) for heading, verdict in named]
            except LedgerError:
                return []
    return []
