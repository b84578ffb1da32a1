"""Benchmarks: ratios to a bare interpreter in the same run, never limits in seconds."""
