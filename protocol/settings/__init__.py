"""Kinds of properties and what they may hold."""
