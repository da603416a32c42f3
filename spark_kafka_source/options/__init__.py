"""The options of the source and the sink: what there is, what it may hold, and what that becomes. Pure."""
