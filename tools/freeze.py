"""What a refactor must not change: hashes of trained and grown checkpoints, and every `--json` of fixed runs.

    python -m tools.freeze build/before      before the change
    python -m tools.freeze build/after       after it, on the same machine
    diff -r build/before build/after

It trains a ladder that grows tokens and layers on one rank, on two ranks, packed, and once more with kills, and
expands its checkpoint by every policy. Times, paths and energy are masked. Takes about five minutes on two cores.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LADDER = f"""
seed: 3
data: {{source: {Path(asyncio.__file__).parent}, include: "*.py", vocab_size: 300, validation_fraction: 0.2}}
model: {{num_layers: 1, hidden_size: 32, num_heads: 2}}
stages:
  - {{name: small, attention_tokens: 8, ffn_tokens: 16, train_steps: 30, release: {{decay: 0.2}}}}
  - {{name: wide, attention_tokens: 16, ffn_tokens: 40, train_steps: 30}}
  - {{name: deep, attention_tokens: 24, ffn_tokens: 48, num_layers: 3, train_steps: 40}}
training: {{sequence_length: 32, batch_size: 8, log_every: 5, precision: fp32}}
learning_rate: {{peak: 5e-3, warmup_steps: 5, decay: 0.2}}
growth: {{ramp: 0.2}}
evaluation: {{every: 10, max_sequences: 64}}
samples: {{prompts: ["def "]}}
checkpoint: {{every: 10, keep: 4}}
controls: [{{kind: tokenformer-scratch, budgets: [0.5, 1]}}]
launch: {{devices: 1}}
"""
RUNS: dict[str, list[str]] = {
    "one": [],
    "two": ["launch.devices=2", "launch.zero_stage=2"],
    "packed": ["data.packing=best_fit", "data.document_mask=true", "controls=[]"],
    "killed": ["controls=[]"],
}
KILLS = ("small/step_00000010", "wide/initial", "deep/step_00000020")
EXPANSIONS: dict[str, list[str]] = {
    "default": ["--add-tokens=8"],
    "official": ["--add-tokens=8", "--preset=official"],
    "paper": ["--add-tokens=8", "--preset=paper-appendix"],
    "matched": ["--add-tokens=8", "--init=matched"],
    "zero-key": ["--add-tokens=8", "--init=zero-key", "--tau=frozen"],
    "anneal": ["--add-tokens=8", "--init=zero-key", "--tau=anneal"],
    "per-generation": ["--add-tokens=8", "--init=zero-value", "--tau=per-generation"],
    "copy": ["--add-tokens=24", "--init=copy", "--tau=recompute"],
    "ffn-of-one-layer": ["--add-tokens=0", "--add-ffn-tokens=8", "--layers=1"],
    "append": ["--add-layers=2"],
    "interleave": ["--add-layers=2", "--depth=interleave", "--add-tokens=4"],
    "copy-stack": ["--add-layers=3", "--depth=copy-stack", "--allow-jump"],
    "copy-middle": ["--add-layers=1", "--depth=copy-middle", "--allow-jump"],
}
DOCUMENTS: dict[str, list[str]] = {
    "status": ["status", "one"],
    "runs": ["runs"],
    "clean": ["clean"],
    "report": ["report", "one"],
    "compare": ["compare", "one", "one-control-tokenformer-scratch"],
    "show": ["show", "one"],
    "show-expanded": ["show", "EXPANDED/default"],
    "verify": ["verify", "one", "EXPANDED/default"],
    "inspect": ["inspect", "one", "--sequences", "4"],
    "eval": ["eval", "one", "--split", "validation"],
    "generate": ["generate", "one", "def f", "--max-new-tokens", "12", "--greedy"],
    "plan": ["plan", "quickstart"],
    "plan-pile": ["plan", "pile_1.4b"],
}
VOLATILE = re.compile(
    r"second|hour|time|when|_id$|_at$|parent|date|path|dir|host|device|version|commit|pid|bytes|energy|joule|watt|energies|mfu|speed|rate|host"
    r"|memory|cpu|disk|free|created|started|ended|command|environment|money|price|cost_in",
    re.IGNORECASE,
)


def growctl(*arguments: object, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "growctl.cli.app", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if expect is not None and result.returncode != expect:
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


def train_with_kills(schedule: Path, runs: Path, *overrides: str) -> None:
    """Kills growctl and its ranks with signal 9 when each checkpoint of KILLS appears, then runs to the end."""
    for point in KILLS:
        stage, checkpoint = point.split("/")
        command = [sys.executable, "-m", "growctl.cli.app", "run", str(schedule), *overrides]
        process = subprocess.Popen(
            [*command, "--name", "killed", "--runs-dir", str(runs)],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        while process.poll() is None and not list(runs.glob(f"killed/stages/*-{stage}/{checkpoint}")):
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    growctl("run", schedule, *overrides, "--name", "killed", "--runs-dir", runs)


def hashes(folder: Path) -> dict[str, str]:
    """sha256 of every tensor file below a folder, and of the model's configuration in its manifests."""
    lines = {}
    for path in sorted(folder.rglob("*.safetensors")):
        if "/step_" not in str(path):
            lines[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    for path in sorted(folder.rglob("manifest.json")):
        model = json.loads(path.read_text()).get("model")
        if model and "/step_" not in str(path):
            lines[str(path.relative_to(folder))] = json.dumps(model, sort_keys=True)
    return lines


def masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: masked(item, key) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [masked(item, name) for item in value]
    return "masked" if VOLATILE.search(name) and not isinstance(value, bool) and value is not None else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output.absolute()
    work = output.with_name(output.name + ".work")
    work.mkdir(parents=True)
    output.mkdir()
    schedule, runs, expanded, killed = work / "ladder.yaml", work / "runs", work / "expanded", work / "killed"
    schedule.write_text(LADDER)
    for name, overrides in RUNS.items():
        print("training", name, flush=True)
        if name == "killed":
            train_with_kills(schedule, killed, *overrides)
        else:
            growctl("run", schedule, *overrides, "--name", name, "--runs-dir", runs)
    for name, options in EXPANSIONS.items():
        growctl("expand", "one", "--runs-dir", runs, "--output", expanded / name, *options)
    for name, folder in {"runs": runs, "expanded": expanded, "killed": killed}.items():
        text = "".join(f"{path} {line}\n" for path, line in hashes(folder).items())
        (output / f"{name}.txt").write_text(text)
    for name, arguments in DOCUMENTS.items():
        command = [argument.replace("EXPANDED", str(expanded)) for argument in arguments]
        where = [] if command[0] == "plan" else ["--runs-dir", str(runs)]
        result = growctl(*command, "--json", *where, expect=None)
        try:
            document = json.dumps(masked(json.loads(result.stdout)), indent=1)
        except ValueError:
            document = f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        (output / f"{name}.json").write_text(document.replace(str(work), "WORK") + "\n")


if __name__ == "__main__":
    main()
