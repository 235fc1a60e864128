"""The package of the toy adapter."""

from __future__ import annotations

__version__ = "0.2.0"
