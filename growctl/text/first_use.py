"""Explains growctl's own words where an output first uses them."""

import re

WORDS = {
    "nats": "units of the natural logarithm",
    "tau": "the factor on the scores",
    "ledger": "a run's record of costs",
}
_WORD = re.compile(rf"(?<![\w./-])({'|'.join(WORDS)})\b(?![./-])(?: per (?:token|FLOP))?")


class FirstUse:
    """Explains each of WORDS once. One object serves one output, such as everything that a command prints."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def explained(self, text: str) -> str:
        """`text`, with an explanation in parentheses after the first use of each word."""

        def explain(found: re.Match[str]) -> str:
            phrase, word = found[0], found[1]
            if word in self._said:
                return phrase
            self._said.add(word)
            return f"{phrase} ({WORDS[word]})"

        return _WORD.sub(explain, text)
