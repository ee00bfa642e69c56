"""From YAML and overrides to a validated schedule: composition, the schema of its blocks, errors."""
