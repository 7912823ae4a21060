"""Downloads the jars that the cluster's image lacks: Kafka, an S3 server, Spark's connectors, and Delta Lake."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.s3_jars import s3_connector_jars, s3_server_jar
from tests.servers.jars import delta_jars, fetch_jars, kafka_connector_jars
from tests.servers.kafka import KAFKA_VERSION


def collect(folder: Path) -> None:
    """Copy the connectors to `folder`/spark, and the other jars to `folder`, where `fetch_jars` finds them."""
    connectors = [*kafka_connector_jars(), *s3_connector_jars()]
    kafka = fetch_jars("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, all_of_it=True)
    (folder / "spark").mkdir(parents=True, exist_ok=True)
    for jar in connectors:
        shutil.copy(jar, folder / "spark")
    shutil.copy(s3_server_jar(), folder / "s3proxy.jar")
    for found in (kafka, delta_jars()):
        shutil.copytree(found[0].parent, folder / found[0].parent.name, dirs_exist_ok=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Download the jars to the folder that the command line names."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    collect(Path(folder))


if __name__ == "__main__":
    main()
