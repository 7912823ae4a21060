"""What Airflow reads about this provider: connection type, configuration, commands and modules.

Airflow imports this module at the start of every process, so it imports nothing else. Types, defaults and help
of the options in ``[tx]`` stand here once; :mod:`airflow_tx.base.config` reads the defaults from here.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
"""The version of the package. It stands nowhere else."""

INTEGRATION = "Transactions"

_Option = dict[str, Any]


def _option(kind: str, default: str, description: str, example: str | None = None) -> _Option:
    return {
        "description": description + "\n",
        "version_added": "0.1.0",
        "type": kind,
        "example": example or default,
        "default": default,
    }


OPTIONS: dict[str, _Option] = {
    "zookeeper_conn_id": _option(
        "string",
        "zookeeper_default",
        "The connection (type ZooKeeper) of the ensemble that keeps the transactions.",
        "zookeeper_prod",
    ),
    "root": _option(
        "string",
        "/airflow_tx",
        "The znode that contains the znodes of all topologies. The path starts with a slash.",
    ),
    "max_pending": _option(
        "integer",
        "1",
        "Maximum number of transactions of a topology in the processing phase at once. A DAG's max_active_runs must be "
        "larger.",
        "4",
    ),
    "processing_timeout": _option(
        "float",
        "3600",
        "Seconds from begin after which a transaction counts as failed if its processing is not complete. The "
        "coordinator then replays it, even if its run is still running.",
        "1800",
    ),
    "staging": _option(
        "string",
        "",
        "Where the output of tasks is stored between processing and commit: an object storage URI that every worker "
        "reaches. Empty: the folder tx_staging in AIRFLOW_HOME, which is enough for a single machine only.",
        "s3://aws_default@bucket/tx_staging",
    ),
    "history": _option(
        "integer", "1000", "Number of ended transactions that the ledger of a topology keeps."
    ),
    "keep_new_values": _option(
        "integer",
        "100",
        "Number of transactions whose new values are kept for later tasks.",
    ),
    "trial_rows": _option(
        "integer",
        "1000",
        "Number of rows that `airflow dags test` and DAG.test() read from a batch to try out a DAG.",
    ),
    "journal": _option(
        "integer",
        "30",
        "Number of days that the journal keeps the contributions of a committed transaction, so that the transaction "
        "can be restated. 0: there is no journal. Transaction(journal=...) overrides this option for one topology.",
        "90",
    ),
    "warm_wait": _option(
        "float",
        "60",
        "Seconds that a committer which is next in line waits in its worker before it defers itself.",
    ),
    "warm_places": _option(
        "integer",
        "2",
        "Number of committers, from the front of the line, that wait in their worker for warm_wait seconds. Each of "
        "them occupies a worker slot. The others wait there only while the line moves faster than a deferral takes.",
    ),
    "min_deferral": _option(
        "float",
        "10",
        "Minimum number of seconds that a trigger holds a deferred task, since Airflow fails tasks that return too "
        "early.",
    ),
    "yield_after": _option(
        "float",
        "30",
        "Seconds that the run whose turn it is may stay queued for lack of a run slot. Then one of the runs that wait "
        "behind it gives up its own slot.",
    ),
    "max_replays": _option(
        "integer",
        "3",
        "Maximum number of times in a row that the coordinator replays a failed transaction. Then the topology is "
        "blocked until a person acts.",
    ),
    "replay_backoff": _option(
        "float",
        "10",
        "Seconds that the coordinator waits before the first replay of a failed transaction. The delay doubles before "
        "each further replay, up to 600 seconds.",
    ),
    "lane": _option(
        "boolean",
        "False",
        "Whether a coordinator processes and commits transactions in its own worker, without a run for each, if the "
        "DAG's tasks allow that. Only a transaction that fails there gets a run.",
        "True",
    ),
    "require_rows": _option(
        "string",
        "counted",
        "The check of consumed rows before a commit. counted: all counts must agree. proven: exact counts must also "
        "show that each row was consumed once. Otherwise the commit is refused.",
        "proven",
    ),
    "coordinator_poll": _option(
        "float",
        "1",
        "Seconds between two polls of the ledger and the source by the coordinator.",
    ),
    "coordinator_linger": _option(
        "float",
        "15",
        "Seconds that the coordinator stays in its worker after its last action, before it defers itself.",
    ),
    "preload": _option(
        "string",
        "auto",
        "Modules to import before processes are forked, separated by commas, so that no task must import them again. "
        "The scheduler, the triggerer, the DAG processor and a Celery worker import them. The name airflow_tx adds all "
        "modules that tasks of this package need. The name auto also adds the client of Spark Connect, if tasks are "
        "forked and a DAG file or a connection uses it. Empty: none. Each module must be safe to fork: it opens no "
        "connection and holds no lock.",
        "auto, psycopg2",
    ),
    "dag_environment": _option(
        "string",
        "AWS_*, GOOGLE_*, AZURE_*, JAVA_HOME, SPARK_*, HADOOP_*",
        "Environment variables of the api-server that the code of DAG files may read for a page or a button, "
        "separated by commas. * matches any text. Airflow's connections, Variables and options of DAGs need not be "
        "listed here.",
        "AWS_*, DATA_BUCKET",
    ),
    "session_timeout": _option(
        "float",
        "10",
        "Seconds without a heartbeat after which ZooKeeper ends a client's session.",
    ),
    "connect_timeout": _option("float", "10", "Seconds to wait for the connection to ZooKeeper."),
}


def _field(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["string", "null"], **schema},
    }


# The keys of the connection's extra. The hook reads no other keys.
CONNECTION_FIELDS: dict[str, dict[str, Any]] = {
    "chroot": _field("Chroot", "Every path is below this znode, such as /production."),
    "auth_scheme": _field(
        "Authentication",
        "How login and password are used: digest, or sasl (DIGEST-MD5). Default: digest if there is a login.",
        enum=["digest", "sasl", None],
    ),
    "use_tls": {
        "label": "TLS",
        "description": "Encrypt the connection.",
        "schema": {"type": ["boolean", "null"], "default": False},
    },
    "ca_file": _field(
        "CA file", "PEM file of the authorities to trust. Default: the authorities of the system."
    ),
    "cert_file": _field("Certificate file", "PEM file of the client's certificate."),
    "key_file": _field("Key file", "PEM file of the client's private key."),
    "key_password": _field("Key password", "Password of the private key.", format="password"),
    "verify": {
        "label": "Verify the server",
        "description": "Check the server's certificate and host name.",
        "schema": {"type": ["boolean", "null"], "default": True},
    },
}


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow's providers manager wants to know about this package."""
    return {
        "package-name": "airflow-provider-tx",
        "name": "Transactions",
        "description": "One DAG run is one transaction: committed in order, exactly once.\n",
        "versions": [__version__],
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "connection-types": [
            {
                "connection-type": "zookeeper",
                "hook-class-name": "airflow_tx.hooks.zookeeper.ZooKeeperHook",
                "hook-name": "ZooKeeper",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"host": "Hosts", "port": "Default port of the hosts"},
                    "placeholders": {"host": "zoo1:2181,zoo2:2181,zoo3:2181", "port": "2181"},
                },
                "conn-fields": CONNECTION_FIELDS,
            }
        ],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_tx.coordinator.blocked",
                    "airflow_tx.coordinator.dag",
                    "airflow_tx.operators.commit",
                    "airflow_tx.operators.spark",
                    "airflow_tx.operators.spark_connect",
                ],
            }
        ],
        "sensors": [
            {"integration-name": INTEGRATION, "python-modules": ["airflow_tx.operators.sensor"]}
        ],
        "hooks": [
            {"integration-name": INTEGRATION, "python-modules": ["airflow_tx.hooks.zookeeper"]}
        ],
        "triggers": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_tx.coordinator.trigger",
                    "airflow_tx.triggers.order",
                    "airflow_tx.triggers.sensor",
                    "airflow_tx.triggers.turn",
                    "airflow_tx.triggers.watcher",
                ],
            }
        ],
        "extra-links": ["airflow_tx.plugin.plugin.TransactionLink"],
        "asset-uris": [
            {"schemes": ["airflow-tx"], "handler": "airflow_tx.triggers.watcher.checked_uri"}
        ],
        "cli": ["airflow_tx.operations.cli.definition.get_tx_cli_commands"],
        "config": {
            "tx": {
                "description": "Options for transactions, such as where their records are stored and how long tasks "
                "wait.",
                "options": OPTIONS,
            }
        },
    }
