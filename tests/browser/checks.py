"""What tests ask of a page in the browser: violations of WCAG and overlapping lettering."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


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
