"""The examples that `script/example` runs."""

from __future__ import annotations

from airflow_tx.local.example import Example
from airflow_tx.local.examples.daily import Daily
from airflow_tx.local.examples.global_count import GlobalCount
from airflow_tx.local.examples.kafka_counts import KafkaCounts
from airflow_tx.local.examples.locations import Locations
from airflow_tx.local.examples.orders import Orders
from airflow_tx.local.examples.sql_orders import SqlOrders
from airflow_tx.local.examples.trident_words import TridentWords
from airflow_tx.local.examples.twitter import Twitter
from airflow_tx.local.examples.words import Words

EXAMPLES: dict[str, type[Example]] = {
    example.name: example
    for example in (Daily, GlobalCount, KafkaCounts, Locations, Orders, SqlOrders, TridentWords, Twitter, Words)
}
