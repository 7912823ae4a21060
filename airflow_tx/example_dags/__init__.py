"""Two DAGs to try the package out: `[core] load_examples` shows them in Airflow, and both begin paused."""
