"""Read on the driver: send requests, plan with `plan`, commit for the group."""
