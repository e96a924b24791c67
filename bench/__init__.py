"""The bench: `python -m bench`, or `make bench`."""
