"""Scripts that write parts of docs/: `make docs`."""
