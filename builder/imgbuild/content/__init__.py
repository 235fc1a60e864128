"""Bytes in, values or bytes out: streaming, bounded, no network."""
