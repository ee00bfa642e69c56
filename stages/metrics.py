"""metrics.jsonl: what a worker says while it trains. One JSON object a line, appended and flushed; no torch.

It is the only word that passes from a worker to the runner: the screen and the ledger are read from it. Every line
has `event`, `attempt` (1 for the first start of the stage), `step` (optimizer steps done in the stage) and `seconds`
(since this attempt was launched, start-up included). The other keys, by event:

- start: device, num_devices, precision, zero_stage, resumed_from (step, or null)
- train: loss (nats a token, over the updates made since the last such line; null where there was none),
  learning_rate, gradient_norm (null where the last update was refused), tokens_seen (in the stage), tokens_per_second
- anomaly: an update that was refused: kind (`non_finite`, `spike`), value (its loss; null where that is not finite),
  threshold (what a spike's loss was compared with, else null), action (`skip`, `rollback`, `stop`), first_step and
  num_steps (the data that is left out: of so many updates from that number on, counted from 0; stages/left_out.py).
  A rollback is its attempt's last word.
- evaluation: point (`interval`, `after_growth`, `final`), loss (nats a token), perplexity, bits_per_byte, num_tokens
  (validation tokens), precision
- trigger: slope (nats the loss fell per FLOP; null while evaluations are few), threshold, fired
- checkpoint: path (name within the stage directory)
- end: nothing more; the stage is done, and all that is left is to rename `final/` into place
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

Record = dict[str, Any]


class MetricsWriter:
    """Appends records, each flushed as one whole line. Only rank 0 of a worker holds one."""

    def __init__(self, path: Path, attempt: int) -> None:
        """Opens `path` for appending; a last line that an earlier death cut short is ended, so that it stands alone."""
        self._attempt = attempt
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._file: TextIO = path.open("a", encoding="utf-8")
        if torn:
            self._file.write("\n")

    def write(self, event: str, step: int, seconds: float, **values: Any) -> None:
        """Appends one record and hands it to the operating system."""
        record = {
            "event": event,
            "attempt": self._attempt,
            "step": step,
            "seconds": round(seconds, 3),
            **values,
        }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Forces what was written onto the disk: called before a checkpoint becomes visible."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class MetricsReader:
    """Follows a metrics.jsonl from where it last stopped reading."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def __iter__(self) -> Iterator[Record]:
        """The whole records that were added since the last iteration; torn lines are passed over."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and "event" in record:
                    yield record


def read_metrics(path: Path) -> list[Record]:
    """Every whole record of `path`, oldest first; empty when there is no such file."""
    return list(MetricsReader(path))
