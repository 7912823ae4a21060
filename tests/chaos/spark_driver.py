"""The driver of the Spark under fire, as a process: it starts, says which process it is, and waits for its end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.chaos.spark import DRIVER

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# One executor of one core; every statement is new and small: to compile it takes longer than to run it.
_SETTINGS = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.memory": "900m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _JVM,
    # An executor that is dead or frozen is missed within seconds, and another one is had again and again.
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "3s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "8",
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
}


def main(port: str, local: str) -> None:
    """Start, and end with the JVM."""
    from pyspark.sql import SparkSession

    own = {"spark.connect.grpc.binding.port": port, "spark.local.dir": local}
    builder = SparkSession.builder.master("local-cluster[1,1,512]").appName("under fire")
    for name, value in {**_SETTINGS, **own}.items():
        builder = builder.config(name, value)
    gateway: Any = builder.getOrCreate().sparkContext._gateway
    told = Path(os.environ[DRIVER])
    new = told.with_suffix(".new")
    new.write_text(str(gateway.proc.pid))
    new.rename(told)
    gateway.proc.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
