"""Tables of operations: one row per operation of a worker in a step."""
