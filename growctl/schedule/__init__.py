"""From a schedule's YAML file and overrides to a checked schedule, with an error for every mistake."""
