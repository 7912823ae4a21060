"""The meaning of a value as a column of a type: it is taken exactly, or refused. All readers ask here."""
