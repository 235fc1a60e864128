"""What the program does: explicit arguments in, a value out, no printing."""
