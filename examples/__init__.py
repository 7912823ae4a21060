"""The examples that `script/example` runs."""

from __future__ import annotations

from examples.chain import Chain
from examples.corrections import Corrections
from examples.daily import Daily
from examples.example import Example
from examples.global_count import GlobalCount
from examples.kafka_counts import KafkaCounts
from examples.lake import Lake
from examples.locations import Locations
from examples.memcached_words import MemcachedWords
from examples.order_summary import OrderSummary
from examples.orders import Orders
from examples.quality import Quality
from examples.queued_words import QueuedWords
from examples.sql_orders import SqlOrders
from examples.trident_words import TridentWords
from examples.tweeted_urls import TweetedUrls
from examples.twitter import Twitter
from examples.words import Words

EXAMPLES: dict[str, type[Example]] = {
    example.name: example
    for example in (
        Chain,
        Corrections,
        Daily,
        GlobalCount,
        KafkaCounts,
        Lake,
        Locations,
        MemcachedWords,
        OrderSummary,
        Orders,
        Quality,
        QueuedWords,
        SqlOrders,
        TridentWords,
        TweetedUrls,
        Twitter,
        Words,
    )
}
