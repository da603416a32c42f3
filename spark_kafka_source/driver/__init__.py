"""What runs on the driver to read: asks brokers, lets `plan` decide, commits for the group."""
