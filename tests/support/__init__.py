"""Helpers of the tests: brokers, clients of other projects, Spark sessions, files and processes."""
