"""Stores behind an address: a connection id or a URL that is never shown, opened at the first use."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

_Opened = TypeVar("_Opened")
_Self = TypeVar("_Self", bound="Addressed[Any]")


class Addressed(ABC, Generic[_Opened]):
    """A state or map that is reached through an Airflow connection, or a URL.

    Copies, such as those for other processes, keep the address; each opens the store itself.

    :param conn_id: of the connection, which is looked up when the store is used, not when a DAG is parsed.
    :param place: where behind the address: a table, a prefix.
    """

    def __init__(self, conn_id: str, place: str) -> None:
        self.conn_id = conn_id
        self.name = f"{conn_id}.{place}"
        self._url: str | None = None
        self._opened: _Opened | None = None

    @classmethod
    def from_url(cls: type[_Self], url: str, *, label: str = "url", **options: Any) -> _Self:
        """Make one without Airflow.

        :param url: of SQLAlchemy, or redis://user:password@host:port/db, rediss://… or unix://path; it is never shown.
        :param label: stands for the connection id in the name.
        :param options: those of the constructor.
        """
        return cls(label, **options)._copy_at(url)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _copy_at(self: _Self, url: str) -> _Self:
        """One at this address, not opened yet."""
        copied = copy.copy(self)
        copied._url = url
        return copied

    @abstractmethod
    def _open(self) -> _Opened: ...

    @property
    def _store(self) -> _Opened:
        if self._opened is None:
            self._opened = self._open()
        return self._opened


def named(made: Any) -> Any:
    """The name of a function in place of itself, for what is shown."""
    return getattr(made, "__qualname__", type(made).__qualname__) if callable(made) else made
