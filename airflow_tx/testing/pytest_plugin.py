"""Empty: `airflow_tx.testing` is the pytest plugin. An environment installed before may still load this module."""
