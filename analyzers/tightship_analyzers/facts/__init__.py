"""Facts: what a trace says, derived once, shared by all rules. One fact per file; no judging here."""
