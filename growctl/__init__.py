"""What the user works with: commands, schedules, the runner, the ledger, the report."""
