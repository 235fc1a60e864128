"""Each thing outside the process behind one module."""
