"""Plans: schema, file format, explanation. Imports no torch."""
