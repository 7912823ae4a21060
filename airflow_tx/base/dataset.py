"""The location of data, as OpenLineage names it. OpenLineage's graph connects runs that use the same location."""

from __future__ import annotations

from typing import NamedTuple

_SCHEMES = {"s3a": "s3", "gcs": "gs"}
"""OpenLineage's URI scheme for an object storage with several schemes."""
_OF_A_DISK = ("", "file", "local")


class Dataset(NamedTuple):
    """The location of data, such as a table, a topic or a folder.

    :ivar namespace: the server, such as ``postgres://host:5432``, without user and password, or ``file`` for a disk.
    :ivar name: the location on that server, such as ``database.schema.table``.
    """

    namespace: str
    name: str

    @classmethod
    def of_folder(cls, uri: str) -> Dataset:
        """Return the dataset of a folder on a disk or in object storage.

        :param uri: path of the folder, or a URI such as ``s3://bucket/folder``.
        """
        scheme, _, place = uri.rpartition("://")
        if scheme in _OF_A_DISK:
            return cls("file", place)
        authority, _, path = place.partition("/")
        return cls(f"{_SCHEMES.get(scheme, scheme)}://{authority}", path or "/")
