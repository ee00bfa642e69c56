"""Pages in a real browser: `make test-browser`. They need Chromium, Playwright for Python and axe-core."""
