"""Records handled by a thread pool beside the polling thread. See docs/processing.md."""
