"""Facts about a whole run, from its samples."""
