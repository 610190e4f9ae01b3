"""Benchmarks: ratios to peers measured in the same run, because machines differ."""
