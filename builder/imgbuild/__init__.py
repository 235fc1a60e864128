"""Reproducible, verified image builds on huge bases, from a lockfile."""

__version__ = "0.1.0"
