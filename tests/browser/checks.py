"""What tests ask of a page in the browser: violations of WCAG and overlapping lettering."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


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
