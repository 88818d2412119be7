"""The Alembic environment and the revisions of the schema, oldest first in versions/."""
