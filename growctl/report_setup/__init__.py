"""How the runs of a report were made: environment, schedules, commands, and what each growth did."""
