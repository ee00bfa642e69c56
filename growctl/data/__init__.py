"""Prepared datasets shown, out to the formats of other programs, and tokenised corpora of other programs in."""
