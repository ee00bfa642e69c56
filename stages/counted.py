"""Numbers with their nouns, for messages."""


def plural(number: float, noun: str, nouns: str | None = None) -> str:
    """`noun` for 1, else its plural: `nouns`, or `noun` with an s."""
    return noun if number == 1 else nouns or f"{noun}s"


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """`1 document`, `1,200 documents`; `nouns` as in `plural`."""
    return f"{number:,} {plural(number, noun, nouns)}"
