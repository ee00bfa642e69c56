"""The kinds of files that charts can be written as, and how figures look."""

from typing import Literal, get_args

FigureFormat = Literal["png", "svg", "pdf"]
"""A kind of file with a chart."""
FIGURE_FORMATS: tuple[FigureFormat, ...] = get_args(FigureFormat)

FigureStyle = Literal["screen", "paper", "paper-wide"]
"""`screen`: for slides and documents. `paper`: one column, 3.25 inches. `paper-wide`: both columns, 6.75 inches."""
FIGURE_STYLES: tuple[FigureStyle, ...] = get_args(FigureStyle)
