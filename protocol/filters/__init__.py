"""Filters of records: a condition in Spark's SQL, evaluated over Arrow columns. Only queries with one import this."""
