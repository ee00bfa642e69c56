"""An HTML page as its elements and texts."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_EMPTY = {"meta", "br", "hr", "img", "link", "input", "wbr"}


@dataclass
class Element:
    """An element, with the text inside it."""

    tag: str
    attributes: dict[str, str]
    parents: list["Element"] = field(repr=False)
    text: str = ""

    def is_within(self, tag: str, **attributes: str) -> bool:
        """Whether an element of that tag, with these attributes, contains this one."""
        return any(parent.tag == tag and attributes.items() <= parent.attributes.items() for parent in self.parents)


class ParsedPage(HTMLParser):
    """The elements of a page, in order. Fails on tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, list(self._open))
        self.elements.append(element)
        if tag not in _EMPTY:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements of a tag, with these attributes (`class_` for `class`)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [e for e in self.elements if e.tag == tag and wanted.items() <= e.attributes.items()]

    @property
    def structure(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every element with the names of its attributes: what text must not change."""
        return [(element.tag, tuple(element.attributes)) for element in self.elements]
