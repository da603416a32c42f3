"""Demo of the source and the sink (`make demo`); `__main__` runs it."""
