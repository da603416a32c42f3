"""The options of the source and the sink: names, allowed values, parsing and rules. Pure functions."""
