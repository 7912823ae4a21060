"""Convert Airflow connections to client library parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.base.connections.aws import (
        S3_SCHEMES as S3_SCHEMES,
        checked_s3_options as checked_s3_options,
        endpoint_of as endpoint_of,
        options_of_connection as options_of_connection,
        scrubbed as scrubbed,
    )
    from airflow_tx.base.connections.kafka import KafkaAddress as KafkaAddress
    from airflow_tx.base.connections.lookup import (
        airflow_connection as airflow_connection,
        all_for_airflow as all_for_airflow,
        connection_of_airflow as connection_of_airflow,
        for_airflow as for_airflow,
        handed_over as handed_over,
        no_connection as no_connection,
        server_addresses as server_addresses,
        wrong_type as wrong_type,
    )
    from airflow_tx.base.connections.rabbit import (
        RabbitBroker as RabbitBroker,
        require_pika as require_pika,
    )
    from airflow_tx.base.connections.redis import (
        RedisFailure as RedisFailure,
        make_client as make_client,
        parameters_of_connection as parameters_of_connection,
        parameters_of_url as parameters_of_url,
        redis_dataset as redis_dataset,
        redis_failures as redis_failures,
        redis_url as redis_url,
    )
    from airflow_tx.base.connections.spark import (
        connect_url as connect_url,
        spark_connection as spark_connection,
    )
    from airflow_tx.base.connections.sql import (
        located as located,
        parsed_url as parsed_url,
        signs_of_life as signs_of_life,
        url_of_connection as url_of_connection,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
