"""The journal: a durable, totally ordered list of records with one writer. Knows the records, never the rules."""
