"""`make bench`: this source, sink and client beside other people's, in one run on the same topics. Start at `run`."""
