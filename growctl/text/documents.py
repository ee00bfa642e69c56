"""The JSON documents that growctl writes: their names, their types, and how commands print them.

Imports nothing but the standard library: `growctl doctor` must start on a machine where other packages are broken.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

SCHEDULE = "schedule"
"""The name of the JSON Schema of schedule files, which growctl/schedule/json_schema.py builds."""

FILES = {
    "metrics": ("a line of metrics.jsonl", "stages.metrics_lines:Line"),
    "samples": ("samples.json", "stages.generate.text_samples:TextSamples"),
    "scores": ("a line of scores.jsonl", "growctl.ledger.entries:ScoreEntry"),
}
"""Files of a run: {name: (what it is, its type as MODULE:NAME)}."""

COMMANDS = {
    "clean": "growctl.runs.clean:Cleanup",
    "compare": "growctl.analysis.results:Pair",
    "data-import": "growctl.data.token_import:DataImportDocument",
    "data-show": "growctl.data.show:DataShowDocument",
    "doctor": "growctl.doctor.check:DoctorDocument",
    "eval": "growctl.evaluate.evaluation:EvalDocument",
    "expand": "growctl.runs.show:WrittenCheckpoint",
    "export": "stages.huggingface.record:HuggingFaceExport",
    "generate": "stages.generate.settings:GeneratedText",
    "import-huggingface": "growctl.runs.show:WrittenCheckpoint",
    "import-official": "growctl.runs.show:WrittenCheckpoint",
    "inspect": "growctl.evaluate.inspection:InspectDocument",
    "law-fit": "growctl.law.formula:Law",
    "ledger-export": "growctl.ledger.exchange:LedgerExportDocument",
    "ledger-import": "growctl.ledger.exchange:LedgerImportDocument",
    "plan": "growctl.ladder.costs:Plan",
    "prepare": "growctl.run.dataset:PrepareDocument",
    "report": "growctl.report.documents:ReportDocument",
    "runs": "growctl.runs.storage:Storage",
    "show": "growctl.runs.show:CheckpointFacts",
    "shrink": "growctl.runs.show:WrittenCheckpoint",
    "status": "growctl.runs.status:StatusDocument",
    "sweep": "growctl.run.sets:SweepDocument",
    "validate": "growctl.ladder.plan:ValidateDocument",
    "verify": "growctl.runs.verify:VerifyDocument",
}
"""What commands print with --json: {command, with - for spaces: its type as MODULE:NAME}."""

DOCUMENTS = (SCHEDULE, *FILES, *COMMANDS)
"""The name of every document that `growctl schema` knows."""

NOT_IN_DOCUMENTS = {
    "AnomalyEntry": ("stage",),  # a report names it beside
    "RunReport": ("directory", "points"),
    "StageCost": ("plan",),
    "RunCost": ("schedule",),
    "Plan": ("devices", "sizes", "missing", "measurements"),
}
"""Fields that belong in no document, by the name of their class: paths of this machine, and what other files hold."""


def left_out(described: type) -> set[str]:
    """The fields of a class that documents do not have."""
    return {name for base in described.__mro__ for name in NOT_IN_DOCUMENTS.get(base.__name__, ())}


def print_document(document: object) -> None:
    """Prints `document` as JSON on standard output."""
    print(document_text(document))


def document_text(document: object) -> str:
    """`document` as JSON text."""
    return json.dumps(plain(document), indent=1, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` as JSON values: dataclasses and pydantic models by their fields, paths as text, non-finite as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.name not in left_out(type(value))]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return plain(value.model_dump(mode="json")) if hasattr(value, "model_dump") else value
