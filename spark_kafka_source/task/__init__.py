"""What runs in a task, in the executors' Python workers, to read; imported there for every batch, so it stays light."""
