"""What every layer uses: time, waiting, signals, one public call at a time."""
