"""What tests ask of a page in the browser: violations of WCAG, overlapping lettering, how it looks from afar."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageChops, ImageFilter, ImageStat

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SCREENSHOTS = Path(__file__).parent / "screenshots"
_SIZE = 64
"""Pixels of a stored screenshot's longer side: shapes and brightness stay, lettering does not."""
_TOLERANCE = 6.0
"""Of the mean difference of all pixels, from 0 to 255. Other fonts move lines a little; a missing chart, much more."""


def violations(page: "Page", axe: str) -> list[str]:
    """The violations of WCAG 2 AA that axe-core finds, with the elements."""
    page.evaluate(axe)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = page.evaluate("tags => axe.run(document, { runOnly: tags })", tags)
    return [
        f"{violation['id']}: {node['html'][:200]} ({node['failureSummary']})"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


def boxes(lettering: "Locator") -> list[tuple[str, dict[str, float]]]:
    """The visible texts among `lettering`, each with its place in the window."""
    found = lettering.evaluate_all(
        """all => all.filter(each => each.checkVisibility() && each.getBoundingClientRect().width)
        .map(each => [each.textContent, each.getBoundingClientRect().toJSON()])"""
    )
    return [(text, box) for text, box in found]


def overlaps(lettering: "Locator") -> list[tuple[str, str]]:
    """Pairs of visible texts among `lettering` that cover each other."""
    found = boxes(lettering)
    assert found

    def cover(a: dict[str, float], b: dict[str, float]) -> bool:
        slack = 2  # a box has room above and below its letters
        return all(
            a[start] + slack < b[end] and b[start] + slack < a[end]
            for start, end in (("left", "right"), ("top", "bottom"))
        )

    return [(a, b) for i, (a, box) in enumerate(found) for b, other in found[i + 1 :] if cover(box, other)]


def differs_from_stored(screenshot: bytes, name: str, write: bool) -> float:
    """How far a screenshot is from the stored one, where 1 is the most that passes; stores it if `write`."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    image.thumbnail((_SIZE, _SIZE))
    path = SCREENSHOTS / f"{name}.png"
    if write:
        path.parent.mkdir(exist_ok=True)
        image.save(path, optimize=True)
    stored = Image.open(path).convert("RGB").resize(image.size)
    blurred = [each.filter(ImageFilter.GaussianBlur(1)) for each in (image, stored)]
    return max(ImageStat.Stat(ImageChops.difference(*blurred)).mean) / _TOLERANCE
