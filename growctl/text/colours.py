"""The colours of growctl's output, each with a contrast of at least 3 against white and against black.

The terminal's own 16 colours are what its theme makes of them: yellow is often unreadable on white, blue on black.
"""

GOOD = "color(28)"
WARNING = "color(130)"
BAD = "color(160)"
BUSY = "color(31)"
FAINT = "color(244)"
"""Less important text."""
