"""What growing saved or lost against the controls: read from ledgers, shown as tables, charts and pages."""
