"""Finds double counts in DAG files and Spark applications from their syntax trees. It imports no file."""
