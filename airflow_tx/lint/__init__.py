"""What would count twice in a DAG file or a Spark application, read from its syntax tree. It imports no file."""
