"""Hosts of one machine: network namespaces on a bridge, which lose each other when a test says so. Root, Linux."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType

import pytest
from typing_extensions import Self


def require_network() -> None:
    """Skip the test, and say so, where hosts cannot be made."""
    missing = [name for name in ("ip", "iptables", "nsenter") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"CLUSTER NOT TESTED: {', '.join(missing)} missing (Debian: apt-get install iproute2 iptables)")
    if os.geteuid() != 0:
        pytest.skip("CLUSTER NOT TESTED: hosts are network namespaces, which only root can make")
    try:
        with Network() as probe:
            probe.add().cut(probe.address)
    except AssertionError as error:
        pytest.skip(f"CLUSTER NOT TESTED: hosts that lose each other cannot be made here: {error}")


class Network:
    """A bridge in the test's own namespace, and hosts on it; a context manager that removes them.

    :ivar address: of the test itself, where servers that the hosts share listen.
    """

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex[:6]
        self._bridge = f"txb{self._id}"
        self._subnet = f"10.{random.randint(128, 254)}.{random.randint(1, 254)}"
        self.address = f"{self._subnet}.1"
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.address}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts:
            _run("ip", "netns", "del", host.namespace)
        _run("ip", "link", "del", self._bridge)

    @property
    def addresses(self) -> list[str]:
        """Of all hosts, and of the test itself."""
        return [self.address, *(host.address for host in self._hosts)]

    def add(self) -> Host:
        """Add a host that reaches all others."""
        number = len(self._hosts) + 2
        host = Host(f"txn{self._id}-{number}", f"{self._subnet}.{number}")
        outside, inside = f"txo{self._id}{number}", f"txi{self._id}{number}"
        _run("ip", "netns", "add", host.namespace)
        self._hosts.append(host)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
        _run("ip", "link", "set", inside, "netns", host.namespace)
        _run("ip", "link", "set", outside, "master", self._bridge, "up")
        _run(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", inside))
        for device in ("lo", inside):
            _run(*host.command("ip", "link", "set", device, "up"))
        return host


class Host:
    """One network namespace with an address of its own."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace = namespace
        self.address = address

    def command(self, *command: str) -> list[str]:
        """How a program is started on this host; its process id stays that of the program."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *command]

    def cut(self, *addresses: str) -> None:
        """Lose every packet to and from these, in silence, as a broken switch does."""
        for address in addresses:
            _run(*self.command("iptables", "-w", "-A", "INPUT", "-s", address, "-j", "DROP"))
            _run(*self.command("iptables", "-w", "-A", "OUTPUT", "-d", address, "-j", "DROP"))

    def kill(self) -> None:
        """End every process on it at once, as a host that loses its power."""
        listed = subprocess.run(_known(["ip", "netns", "pids", self.namespace]), capture_output=True, text=True)
        for pid in listed.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def heal(self) -> None:
        """Reach everybody again."""
        _run(*self.command("iptables", "-w", "-F"))

    @contextmanager
    def without(self, *addresses: str) -> Iterator[None]:
        """Be cut off from these within the block."""
        self.cut(*addresses)
        try:
            yield
        finally:
            self.heal()


def _run(*command: str) -> None:
    done = subprocess.run(_known(command), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def _known(command: Sequence[str]) -> list[str]:
    # Where Debian keeps them, also for a user whose PATH does not say so.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return [shutil.which(command[0], path=path) or command[0], *command[1:]]
