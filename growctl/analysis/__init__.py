"""The judge: what finished models cost, which runs compare, and what a comparison shows."""
