"""One airflow DAG a topic, so that tests do not count each other's transactions."""

from counting import counting_dag

for dag_id in ("pipelined", "cleared", "failing", "crashed", "overruled", "restarted", "tested", "overtaken"):
    counting_dag(dag_id)

# Two topologies, each below a root of its own.
counting_dag("left", root="/left")
counting_dag("right", root="/right")

# The second one asks for a name that belongs to the first one.
counting_dag("owner", topology="claimed")
counting_dag("intruder", topology="claimed")

# A server that is not there.
counting_dag("database_away", conn_id="state_away")
