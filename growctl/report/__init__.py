"""The report: what growing saved or lost against the controls, as tables, charts and pages."""
