"""Shared makers for tests."""
