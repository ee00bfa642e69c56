"""The frame and look of the pages that growctl writes: self-contained, without scripts, for light and dark screens."""

import re
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACEHOLDER = "#010203"
"""A colour that no chart uses otherwise. `svg_element` replaces it with the page's text colour."""

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 22%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem;
  background: Canvas; color: CanvasText; }
h1 { font-size: 1.7rem; margin: 0 0 1.5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; } tbody th span { font-weight: normal; opacity: .7; }
section.verdict { border-left: 4px solid #0072b2; padding: .1rem 1.1rem .4rem; }
section.verdict p { margin: .3rem 0; } section.verdict p:first-of-type { font-weight: 600; }
.wide { overflow-x: auto; } svg { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th:first-child { padding-left: 0; } th { font-weight: 600; }
thead th { vertical-align: bottom; } tbody th { padding-top: 1.1rem; } td:first-child { padding-left: .8rem; }
figure { margin: .75rem 0; } figcaption { font-weight: 600; font-size: .9rem; }
pre { margin: .2rem 0; padding: .5rem .75rem; border: 1px solid var(--line); white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: .85rem; }
td.note { white-space: normal; text-align: left; }
tr.published { opacity: .6; font-style: italic; } :not(.published) + tr.published td { border-top: 2px solid; }
.note, footer { opacity: .75; font-size: .9rem; } footer { margin-top: 3rem; }
"""


def page(title: str, body: str) -> str:
    """An HTML document. It loads nothing and runs nothing. `body` is HTML; `title` is text."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def svg_element(figure: "Figure") -> str:
    """The figure as an `<svg>` element to embed in a page: transparent, `PLACEHOLDER` in the page's text colour."""
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    buffer = StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace(PLACEHOLDER, "currentColor")
