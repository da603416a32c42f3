"""Values with a schema as Arrow columns: Avro, and the ids of a schema registry."""
