"""The database: engine, schema, partitions, migrations and the data model."""
