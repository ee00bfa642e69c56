"""What the user touches: commands, schedules, the runner, the ledger, the report."""
