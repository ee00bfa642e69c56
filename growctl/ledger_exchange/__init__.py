"""Ledgers in and out: export as CSV, Parquet or JSON, and import from other machines."""
