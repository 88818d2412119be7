"""Sub-commands of the platform. Each module imports click and nothing heavy; the work is imported when called."""
