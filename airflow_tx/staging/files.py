"""The few file operations staging needs, on a local folder or on an object store.

Local paths use nothing but the standard library. Any other URI goes to fsspec; an Airflow connection in it
(``s3://conn@bucket/...``) is resolved by Airflow's ObjectStoragePath, and where there is no Airflow (a Spark driver)
it is dropped: the driver then signs in with what its own environment gives it.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit, urlunsplit

from airflow_tx.errors import StagingUnavailable, StagingUnreachable, TxError

_SPARK_SCHEMES = {"s3": "s3a", "gcs": "gs", "abfs": "abfss", "local": "file"}


def spark_scheme(scheme: str) -> str:
    """Translate a scheme of fsspec into the one that Hadoop's file systems, and so Spark, listen to."""
    return _SPARK_SCHEMES.get(scheme, scheme)


def literal(uri: str) -> str:
    """Quote a file for Spark's readers: what would be a wildcard in its name is none."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", uri)


class Files(ABC):
    """Files below one root, an absolute path or URI; names are relative to it, with ``/`` between parts."""

    def __init__(self, root: str) -> None:
        self.root = root

    def uri(self, name: str) -> str:
        """Name a file by a path or URI that another process can open."""
        return f"{self.root}/{name}" if name else self.root

    def spark_uri(self, name: str) -> str:
        """Name it in the spelling that Spark's file systems know."""
        return self.uri(name)

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file so that a reader sees all of it or nothing; its folder is made.

        :raises StagingUnavailable: it is not there: the disk is full, or nobody may write.
        """
        with self._made(name):
            self._write(name, content)

    def copy(self, source: str, name: str) -> None:
        """Copy a file that nobody changes, without moving its content through this process where the store can.

        :raises StagingUnavailable: the copy is not there.
        """
        with self._made(name):
            self._copy(source, name)

    @contextmanager
    def _made(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise StagingUnavailable(uri=self.uri(name), reason=reason) from error

    @contextmanager
    def reaching(self, name: str) -> Iterator[None]:
        """Tell what a client says of a store that does not answer, while a file is used within the block.

        :raises StagingUnreachable: it does not.
        """
        yield

    @abstractmethod
    def _write(self, name: str, content: bytes) -> None:
        """Write it, or raise OSError."""

    @abstractmethod
    def _copy(self, source: str, name: str) -> None:
        """Copy it, or raise OSError."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Count the bytes of a file."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read a whole file."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file for reading at any position."""

    @abstractmethod
    def list(self, name: str) -> dict[str, int | None]:
        """Name what lies directly in a folder, with its size (None: a folder); nothing if there is no such folder."""

    @abstractmethod
    def remove_tree(self, name: str) -> None:
        """Remove a folder with all it holds; what is gone already, or goes meanwhile, is no error."""


class LocalFiles(Files):
    """A folder of this machine or a mounted one."""

    def __init__(self, root: str) -> None:
        super().__init__(os.path.abspath(root))

    def _path(self, name: str) -> Path:
        return Path(self.root, name)

    def spark_uri(self, name: str) -> str:
        return "file://" + self.uri(name)

    def _write(self, name: str, content: bytes) -> None:
        with self._put(name) as partial, partial.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())

    def _copy(self, source: str, name: str) -> None:
        with self._put(name) as partial:
            try:
                os.link(self._path(source), partial)
            except OSError:  # not every file system has links
                shutil.copyfile(self._path(source), partial)

    @contextmanager
    def _put(self, name: str) -> Iterator[Path]:
        """Give the place of a file that gets its name at the end of the block."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            yield partial
            os.replace(partial, path)
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()

    def size(self, name: str) -> int:
        return self._path(name).stat().st_size

    def read(self, name: str) -> bytes:
        return self._path(name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        return self._path(name).open("rb")

    def list(self, name: str) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        try:
            entries = list(os.scandir(self._path(name)))
        except (FileNotFoundError, NotADirectoryError):
            return found
        for entry in entries:
            with suppress(FileNotFoundError):
                found[entry.name] = None if entry.is_dir() else entry.stat().st_size
        return found

    def remove_tree(self, name: str) -> None:
        shutil.rmtree(self._path(name), ignore_errors=True)


class RemoteFiles(Files):
    """An object store, or any other file system that fsspec knows."""

    def __init__(self, root: str) -> None:
        super().__init__(root.rstrip("/"))
        self._fs, self._base = _filesystem(self.root)

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def spark_uri(self, name: str) -> str:
        parts = urlsplit(self.uri(name))
        scheme = spark_scheme(parts.scheme)
        return urlunsplit(parts._replace(scheme=scheme, netloc=parts.netloc.rpartition("@")[2]))

    @contextmanager
    def reaching(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, LookupError, RuntimeError, TypeError, ValueError, TxError):
            raise
        except Exception as error:  # clients of stores have errors of their own kind for this
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StagingUnreachable(uri=self.uri(name), reason=reason) from error

    def _write(self, name: str, content: bytes) -> None:
        with self.reaching(name):
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(self._path(name), content)

    def _copy(self, source: str, name: str) -> None:
        with self.reaching(name):
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            self._fs.cp_file(self._path(source), self._path(name))

    def size(self, name: str) -> int:
        with self.reaching(name):
            return int(self._fs.size(self._path(name)))

    def read(self, name: str) -> bytes:
        with self.reaching(name):
            return bytes(self._fs.cat_file(self._path(name)))

    def open(self, name: str) -> BinaryIO:
        with self.reaching(name):
            opened: BinaryIO = self._fs.open(self._path(name), "rb")
        return opened

    def list(self, name: str) -> dict[str, int | None]:
        self._fs.invalidate_cache()
        try:
            with self.reaching(name):
                entries = self._fs.ls(self._path(name), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {
            entry["name"].rstrip("/").rpartition("/")[2]: None
            if entry["type"] == "directory"
            else int(entry["size"])
            for entry in entries
            if entry["name"].rstrip("/") != self._path(name).rstrip("/")
        }

    def remove_tree(self, name: str) -> None:
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError), self.reaching(name):
            self._fs.rm(self._path(name), recursive=True)


def _filesystem(root: str) -> tuple[Any, str]:
    parts = urlsplit(root)
    connection, _, netloc = parts.netloc.rpartition("@")
    if connection:
        with suppress(ImportError):
            from airflow.sdk import ObjectStoragePath

            path = ObjectStoragePath(root)
            return path.fs, path.path.rstrip("/")
    import fsspec  # type: ignore[import-untyped]

    fs, base = fsspec.core.url_to_fs(urlunsplit(parts._replace(netloc=netloc)))
    return fs, base.rstrip("/")


def open_files(root: str) -> Files:
    """Open the files below a path, a ``file://`` URI, or the URI of an object store."""
    scheme, found, rest = root.partition("://")
    if not found:
        return LocalFiles(root)
    return LocalFiles(rest) if scheme == "file" else RemoteFiles(root)
