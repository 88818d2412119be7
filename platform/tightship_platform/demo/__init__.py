"""The demo: four training jobs, captured and judged."""
