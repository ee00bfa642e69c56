"""The schema of a schedule: its blocks, their keys, and the quantities in them."""
