"""Breaks a copy of the code, and finds out which check catches it: see `scripts/mutants`."""
