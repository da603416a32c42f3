"""Offsets of a group: marks, commits and their replies, and what the coordinator has."""
