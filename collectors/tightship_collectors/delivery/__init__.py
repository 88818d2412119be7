"""From the host to the server: a durable queue and its sender."""
