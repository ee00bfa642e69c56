"""The judge: what finished models cost, which of them compare, and which side won."""
