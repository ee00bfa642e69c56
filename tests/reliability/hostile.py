"""Malicious text for places where growctl expects a name."""

from pathlib import Path

from hypothesis import strategies as st

from growctl.ledger.entries import RunEntry, StageEntry
from growctl.ledger.ledger import Ledger
from model.flops import Flops

HOSTILE = [
    *("", ".", "..", "../up", "a/../../b", "/etc", "a/b", "~", "~root", ".hidden", "-rf", "--wrap=touch x", "-"),
    *("a b", " a", "a ", "a\tb", "a\nb", "a\n", "\na", "a\rb", "a\vb", "a\0b", "\0", "a\x1b[31mb", "\x7f", "\x9b2J"),
    *("'", '"', "a'b", 'a"b', "'; touch x; '", '"; touch x; "', "\\", "a\\", "\\\na"),
    *("$(touch x)", "`touch x`", "${HOME}", "$HOME", "a;touch x", "a&touch x", "a|touch x", "a>x", "<x", "a # b"),
    *("*", "?", "[a-z]", "{a,b}", "!!", "%j", "a=b", "a,b", "a@b", "a:b", "root@host", "[bold]a[/]", "<script>"),
    *("\uff41", "\u0430", "a\u202eb", "a\u200bb", "a\u2028b", "a\u0301", "\u2025", "\u2215etc", "\ue000", "a\u00a0b"),
    *("a" * 300, "é" * 200, "=1+1", "+1", "@a"),
]
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))


def record_run(directory: Path, name: str, *stages: str, text: str = "text", ladder: str | None = None) -> Path:
    """A run whose ledger has these names, and `text` for all other text; with a `ladder`, it is a control of that."""
    directory.mkdir(parents=True)
    entries = [StageEntry(stage, 10, 1, 1, 1, 256, Flops(1.0, 1.0, 1.0), 1.0) for stage in stages]
    with Ledger(directory / "ledger.db") as ledger:
        ledger.record_run(RunEntry(name, text, ladder and text, ladder, 1, text, text), entries)
    return directory
