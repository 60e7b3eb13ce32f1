"""Breaks a copy of the code and sees which check catches it: see `scripts/mutants`."""
