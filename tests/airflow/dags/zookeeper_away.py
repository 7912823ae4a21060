"""An Airflow DAG whose ZooKeeper is not there; its tasks, which are processes of their own, do not wait long for it."""

import os

from counting import counting_dag

os.environ["AIRFLOW__TX__CONNECT_TIMEOUT"] = "2"
counting_dag("zookeeper_away", zookeeper_conn_id="zookeeper_away")
