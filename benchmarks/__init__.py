"""Benchmarks of this project's source, sink and client and of comparable ones, on the same topics (`make bench`)."""
