"""Lines of logs, and what never stands in them."""
