"""The location of data in OpenLineage's naming. Two runs with the same location are connected in its graph."""

from __future__ import annotations

from typing import NamedTuple

_SCHEMES = {"s3a": "s3", "gcs": "gs"}
"""OpenLineage's scheme for object storages with several schemes."""
_OF_A_DISK = ("", "file", "local")


class Dataset(NamedTuple):
    """The location of data, such as a table, a topic or a folder.

    :ivar namespace: the server, such as ``postgres://host:5432``, without user and password; ``file`` for a disk.
    :ivar name: the location on that server, such as ``database.schema.table``.
    """

    namespace: str
    name: str

    @classmethod
    def of_folder(cls, uri: str) -> Dataset:
        """Name a folder on a disk or in an object storage.

        :param uri: its path, or a URI such as ``s3://bucket/folder``.
        """
        scheme, _, place = uri.rpartition("://")
        if scheme in _OF_A_DISK:
            return cls("file", place)
        authority, _, path = place.partition("/")
        return cls(f"{_SCHEMES.get(scheme, scheme)}://{authority}", path or "/")
