"""Public records: what queries return, the API serves and pages draw."""
