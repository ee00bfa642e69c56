"""An HTML page as its elements and texts."""

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Element:
    """An element, with the text inside it."""

    tag: str
    attributes: dict[str, str]
    parents: list["Element"] = field(repr=False)
    text: str = ""


class ParsedPage(HTMLParser):
    """The elements of a page, in order. Fails on tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}, list(self._open)))
        if tag not in ("meta", "br", "hr", "img", "link", "input", "wbr"):
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag

    def handle_data(self, data):
        for element in self._open:
            element.text += data

    def all(self, tag: str, within: str = "html", **attributes: str) -> list[Element]:
        """The elements of a tag inside those of another, with these attributes (`class_` for `class`)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        found = [each for each in self.elements if each.tag == tag and wanted.items() <= each.attributes.items()]
        return [each for each in found if tag == "html" or within in [parent.tag for parent in each.parents]]

    @property
    def structure(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every element with the names of its attributes: what text must not change."""
        return [(element.tag, tuple(element.attributes)) for element in self.elements]
