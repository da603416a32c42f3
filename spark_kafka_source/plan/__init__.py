"""What a batch is to read, and what is lost, from what brokers have answered. Pure: asks nobody, knows no Spark."""
