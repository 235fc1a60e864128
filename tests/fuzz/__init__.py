"""Hostile bytes for every reader: `python -m tests.fuzz TARGET [SECONDS]` looks for an input that breaks a promise."""
