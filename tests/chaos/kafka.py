"""A Kafka whose clients come through a proxy: a broker tells them its address, so that is the proxy's."""

from __future__ import annotations

from tests.servers.kafka import LocalKafka

TOPIC = "numbers"


class FiredKafka(LocalKafka):
    """One node with one topic of one partition: an order of all numbers is what the judge compares.

    :ivar advertised: `host:port` of the proxy; set before the first start.
    """

    advertised = ""

    def add(self, numbers: range) -> None:
        """Write numbers into the topic; the first ones make it."""
        if numbers.start == 0:
            self.create_topic(TOPIC)
        self.produce(TOPIC, (str(number) for number in numbers), partition=0)

    def _addresses(self) -> dict[str, str]:
        found = super()._addresses()
        own, proxied = f"CLIENT://{self.bootstrap}", f"CLIENT://{self.advertised}"
        return {**found, "advertised.listeners": found["advertised.listeners"].replace(own, proxied)}
