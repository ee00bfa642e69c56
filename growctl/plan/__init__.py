"""What a schedule costs before it runs: memory, time, money and disk."""
