"""Documents and values: frozen, parsed at the edge, no I/O."""
