"""Read ranges of offsets in tasks, in the executors' Python workers. Imported for every batch, so imports are few."""
