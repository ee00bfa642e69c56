"""Strategies for what users may ask of `growctl init`."""

import math

from hypothesis import strategies as st

parameters = st.floats(math.log10(150e3), 10).map(lambda exponent: round(10**exponent))
"""150k to 10B, evenly in logarithms."""

bases = st.none() | st.floats(1.25, 30)
"""How many times the last size is above the base; None: the default base."""
