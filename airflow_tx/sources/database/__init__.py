"""How SQL databases are asked for rows. Loaded when a source is asked, never where a DAG file is parsed."""
