"""Two example DAGs, which Airflow loads with `[core] load_examples`; both begin paused."""
