"""Used by all layers: time, waiting, signals, one public call at a time."""
