"""Checks of growctl on real services: schedulers, remote shells, object stores. `make test-services` runs them."""
