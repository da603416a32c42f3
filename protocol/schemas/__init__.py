"""Keys and values in Avro, Protobuf or JSON as Arrow columns, and clients of schema registries."""
