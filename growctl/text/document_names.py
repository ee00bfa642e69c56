"""The documents that have a JSON Schema, by name, with the types that describe them. Imports nothing."""

SCHEDULE = "schedule"
"""The name of the schema of schedule files, which growctl/schedule/json_schema.py builds."""

FILES = {
    "metrics": ("a line of metrics.jsonl", "stages.metrics_lines:Line"),
    "samples": ("samples.json", "stages.generate.text_samples:TextSamples"),
    "scores": ("a line of scores.jsonl", "growctl.ledger.entries:ScoreEntry"),
}
"""Files of a run: {name: (what it is, its type as MODULE:NAME)}."""

COMMANDS = {
    "clean": "growctl.runs.clean:Cleanup",
    "compare": "growctl.analysis.results:Pair",
    "data-export": "growctl.data.export:DataExportDocument",
    "data-import": "growctl.data.importing:DataImportDocument",
    "data-show": "growctl.data.show:DataShowDocument",
    "doctor": "growctl.doctor.check:DoctorDocument",
    "eval": "growctl.evaluate.evaluation:EvalDocument",
    "expand": "growctl.cli.written:WrittenCheckpoint",
    "export": "growctl.cli.written:ExportDocument",
    "generate": "stages.generate.settings:GeneratedText",
    "import-official": "growctl.cli.written:WrittenCheckpoint",
    "inspect": "growctl.evaluate.inspection:InspectDocument",
    "ledger-export": "growctl.ledger.exchange:LedgerExportDocument",
    "ledger-import": "growctl.ledger.exchange:LedgerImportDocument",
    "plan": "growctl.ladder.costs:Plan",
    "prepare": "growctl.run.dataset:PrepareDocument",
    "report": "growctl.report.documents:ReportDocument",
    "runs": "growctl.runs.storage:Storage",
    "show": "growctl.runs.show:CheckpointFacts",
    "shrink": "growctl.cli.written:WrittenCheckpoint",
    "status": "growctl.runs.status:StatusDocument",
    "sweep": "growctl.run.sets:SweepDocument",
    "validate": "growctl.ladder.brief:ValidateDocument",
    "verify": "growctl.runs.verify:VerifyDocument",
}
"""What commands print with --json: {command, with - for spaces: its type as MODULE:NAME}."""

DOCUMENTS = (SCHEDULE, *FILES, *COMMANDS)
"""The name of every document that `growctl schema` knows."""


def title(name: str) -> str:
    """What the document `name` is, for people."""
    return FILES[name][0] if name in FILES else f"growctl {name.replace('-', ' ')} --json"


def type_of(name: str) -> str:
    """The type of the document `name`, as MODULE:NAME. KeyError for an unknown name."""
    return FILES[name][1] if name in FILES else COMMANDS[name]
