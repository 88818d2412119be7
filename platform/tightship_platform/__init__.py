"""The ground that all others stand on: settings, errors, units, models, database, artifact store, API, CLI."""

__version__ = "0.1.0"
