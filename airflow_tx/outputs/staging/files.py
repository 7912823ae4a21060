"""File operations on disks and object storage, for staging and for file sources.

Local paths need only the standard library, and fsspec handles any other URI. Airflow's ObjectStoragePath resolves a
connection in the URI (``s3://conn@bucket/...``). Without Airflow, such as in a Spark driver, the connection is dropped,
and the driver uses the credentials of its environment.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import urlsplit, urlunsplit

from airflow_tx.base.errors import StagingUnavailable, StagingUnreachable, TxError

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

_SPARK_SCHEMES = {"s3": "s3a", "gcs": "gs", "abfs": "abfss", "local": "file"}


@dataclass(frozen=True)
class Listed:
    """An entry of a folder.

    :param is_folder: whether the entry is a folder.
    :param info: the facts in an object storage listing, or None for a file on disk.
    :param is_link: whether the entry is a symbolic link.
    """

    is_folder: bool
    info: Any = None
    is_link: bool = False


def spark_uri(uri: str) -> str:
    """Return a path or a URI with the scheme of Hadoop's file systems, which Spark needs."""
    scheme, found, rest = uri.partition("://")
    if not found:
        return f"file://{uri}"
    host, slash, path = rest.partition("/")
    return f"{_SPARK_SCHEMES.get(scheme, scheme)}://{host.rpartition('@')[2]}{slash}{path}"


def literal(uri: str) -> str:
    """Escape the wildcards in a file name, so that Spark reads exactly this file."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", uri)


class Sink:
    """A file that pyarrow writes in parts.

    An error of the file is raised as StagingUnavailable, but an error of rows is not.

    :param out: the opened file.
    :param making: a context manager that replaces errors, such as `Files._made`.
    :ivar size: the number of bytes written.
    """

    closed = False

    def __init__(self, out: BinaryIO, making: Callable[[], AbstractContextManager[None]]) -> None:
        self._out = out
        self._making = making
        self.size = 0

    def write(self, content: bytes) -> int:
        """Write a part of the file.

        :raises StagingUnavailable: the part cannot be written.
        """
        with self._making():
            self._out.write(content)
        self.size += len(content)
        return len(content)

    def flush(self) -> None:
        """Do nothing. The file becomes visible only when it is complete."""


class Files(ABC):
    """Files below one root, which is an absolute path or a URI.

    Names are relative to the root, with ``/`` between parts.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def uri(self, name: str) -> str:
        """Return the path or the URI of a file, under which another process can open it."""
        return f"{self.root}/{name}" if name else self.root

    def spark_uri(self, name: str) -> str:
        """Return the URI of a file with the scheme that Spark expects."""
        return spark_uri(self.uri(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically, and create its folder. A reader sees the complete file or no file.

        :raises StagingUnavailable: the file cannot be written. The disk may be full, or permission is missing.
        """
        with self._made(name):
            self._write(name, content)

    @contextmanager
    def writing(self, name: str) -> Iterator[Sink]:
        """Open a file of any size for writing. It becomes visible if the `with` block ends without an error.

        :raises StagingUnavailable: see `write`.
        """
        put = ExitStack()
        with self._made(name):
            out = put.enter_context(self._opened(name))
        try:
            yield Sink(out, partial(self._made, name))
        except BaseException as error:
            # Closing a file writes its buffer. On a full disk, this raises a second error, which
            # has no remedy.
            with suppress(OSError):
                put.__exit__(type(error), error, error.__traceback__)
            raise
        with self._made(name):
            put.close()

    def copy(self, source: str, name: str) -> None:
        """Copy a file that never changes. If possible, the store copies it on its own side.

        :raises StagingUnavailable: the file cannot be copied.
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

    def list(self, name: str) -> dict[str, int | None]:
        """Return the entries of a folder with their sizes. The size of a folder is None.

        A missing folder has no entries.
        """
        sizes: dict[str, int | None] = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for each, listed in self.entries(name).items():
                with suppress(FileNotFoundError):  # The entry was removed after the listing.
                    path = f"{name}/{each}".lstrip("/")
                    sizes[each] = None if listed.is_folder else self.size(path, listed)
        return sizes

    @contextmanager
    def reaching(self, name: str) -> Iterator[None]:
        """Replace errors of the store's client in the `with` block.

        :raises StagingUnreachable: the store does not answer.
        """
        yield

    @abstractmethod
    def _write(self, name: str, content: bytes) -> None:
        """Write a file. Raise OSError if the file cannot be written."""

    @abstractmethod
    def _opened(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file that becomes visible at the end of the `with` block. Raise OSError if it cannot be opened."""

    @abstractmethod
    def _copy(self, source: str, name: str) -> None:
        """Copy a file. Raise OSError if the file cannot be copied."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read the complete content of a file."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file for reading at any position."""

    def size(self, name: str, listed: Listed | None = None) -> int:
        """Return the size of a file in bytes.

        :param listed: the entry of the file from `entries`, or None to ask the storage.
        """
        info = listed.info if listed else None
        return int((info or self.info(name))["size"])

    @abstractmethod
    def entries(self, name: str) -> dict[str, Listed]:
        """Return the current entries of a folder, by name. A missing folder has no entries.

        :raises OSError: the folder cannot be listed.
        """

    @abstractmethod
    def info(self, name: str) -> Mapping[str, Any]:
        """Return the current size of a file, and everything else that the storage records about it."""

    @abstractmethod
    def is_folder(self, name: str) -> bool:
        """Return whether a folder exists.

        :raises OSError: the storage does not answer.
        """

    @abstractmethod
    def remove_tree(self, name: str) -> None:
        """Remove a folder with all its files. Missing files are not an error."""


class LocalFiles(Files):
    """A folder on this machine, or a mounted file system."""

    def _path(self, name: str) -> Path:
        return Path(self.root, name)

    def _write(self, name: str, content: bytes) -> None:
        with self._opened(name) as out:
            out.write(content)

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        with self._put(name) as draft, draft.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())

    def _copy(self, source: str, name: str) -> None:
        with self._put(name) as draft:
            try:
                os.link(self._path(source), draft)
            except OSError:  # Some file systems have no links.
                shutil.copyfile(self._path(source), draft)

    @contextmanager
    def _put(self, name: str) -> Iterator[Path]:
        """Yield the path of a draft, which is renamed to the file at the end of the `with` block."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            yield draft
            os.replace(draft, path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()

    def read(self, name: str) -> bytes:
        return self._path(name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        return self._path(name).open("rb")

    def entries(self, name: str) -> dict[str, Listed]:
        try:
            with os.scandir(self._path(name)) as found:
                entries = [
                    (each.name, each.is_dir(), each.is_file(), each.is_symlink()) for each in found
                ]
        except (FileNotFoundError, NotADirectoryError) as error:
            if not name or (isinstance(error, FileNotFoundError) and self._path(name).is_symlink()):
                raise
            return {}
        # A broken link is also an entry, and its reader gets the error.
        return {
            name: Listed(is_dir, is_link=is_link)
            for name, is_dir, is_file, is_link in entries
            if is_dir or is_file or is_link
        }

    def info(self, name: str) -> Mapping[str, Any]:
        status = self._path(name).stat()
        # A copy may keep the original's modification time, but no user can set the inode's change
        # time.
        return {
            "size": status.st_size,
            "modified": status.st_mtime_ns,
            "changed": status.st_ctime_ns,
        }

    def is_folder(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(self._path(name).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def remove_tree(self, name: str) -> None:
        shutil.rmtree(self._path(name), ignore_errors=True)


class RemoteFiles(Files):
    """An object storage, or any other file system that fsspec supports.

    :param root: the URI of the root.
    :param path: the root as Airflow's ObjectStoragePath. If it is None and the root names a connection, it is created.
    """

    def __init__(self, root: str, path: ObjectStoragePath | None = None) -> None:
        super().__init__(root.rstrip("/"))
        self._fs, base = (path.fs, path.path) if path else _filesystem(self.root)
        self._base = str(self._fs._strip_protocol(base)).rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    @contextmanager
    def reaching(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, LookupError, RuntimeError, TypeError, ValueError, TxError):
            raise
        except Exception as error:  # Each client has its own class of this error.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StagingUnreachable(uri=self.uri(name), reason=reason) from error

    def _write(self, name: str, content: bytes) -> None:
        self._ask(self._fs.makedirs, name.rpartition("/")[0], exist_ok=True)
        self._ask(self._fs.pipe_file, name, content)

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        # Write a local file first. A client closes its remote file after an error, which would
        # store an incomplete file.
        with NamedTemporaryFile() as out:
            yield cast("BinaryIO", out)
            out.flush()
            self._ask(self._fs.makedirs, name.rpartition("/")[0], exist_ok=True)
            self._ask(lambda path: self._fs.put_file(out.name, path), name)

    def _copy(self, source: str, name: str) -> None:
        self._ask(self._fs.makedirs, name.rpartition("/")[0], exist_ok=True)
        self._ask(self._fs.cp_file, source, self._path(name))

    def read(self, name: str) -> bytes:
        return bytes(self._ask(self._fs.cat_file, name))

    def open(self, name: str) -> BinaryIO:
        return cast("BinaryIO", self._ask(self._fs.open, name, "rb"))

    def entries(self, name: str) -> dict[str, Listed]:
        try:
            found = self._ask(self._fresh().ls, name, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}  # A folder exists while it has files.
        listed = {self._below(name, info): _listed(info) for info in found}
        return {each: listing for each, listing in listed.items() if each}

    def tree(self) -> dict[str, dict[str, Listed]]:
        """Return the entries of all folders below a path, by name. Object storage lists 1,000 objects per request."""
        tree: dict[str, dict[str, Listed]] = {}
        for info in self._ask(self._fresh().find, "", detail=True).values():
            folder, _, last = self._below("", info).rpartition("/")
            if last:
                tree.setdefault(folder, {})[last] = _listed(info)
            while folder:
                folder, _, last = folder.rpartition("/")
                tree.setdefault(folder, {})[last] = Listed(is_folder=True)
        return tree

    def info(self, name: str) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self._ask(self._fresh().info, name))

    def listed(self, name: str) -> Mapping[str, Any]:
        """Return the file facts from the last listing, or read them from the store if the client has dropped them."""
        return cast("Mapping[str, Any]", self._ask(self._fs.info, name))

    def modified(self, name: str) -> datetime:
        """Return when a file was last modified, according to its listing."""
        return cast("datetime", self._ask(self._fs.modified, name))

    def is_folder(self, name: str) -> bool:
        return bool(self._ask(self._fresh().isdir, name))

    def remove_tree(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(self._fresh().rm, name, recursive=True)

    def _ask(self, call: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> Any:
        with self.reaching(name):
            return call(self._path(name), *arguments, **options)

    def _fresh(self) -> Any:
        """Return the client without its listing cache, since other processes also write and remove files."""
        self._fs.invalidate_cache()
        return self._fs

    def _below(self, name: str, info: Mapping[str, Any]) -> str:
        return str(info["name"]).removeprefix(self._path(name)).strip("/")


def _listed(info: Mapping[str, Any]) -> Listed:
    # Some tools mark an empty folder with an object whose name ends in "/".
    is_folder = info["type"] == "directory" or str(info["name"]).endswith("/")
    return Listed(is_folder, None if is_folder else info)


def _filesystem(root: str) -> tuple[Any, str]:
    parts = urlsplit(root)
    connection, _, netloc = parts.netloc.rpartition("@")
    if connection:
        with suppress(ImportError):
            from airflow.sdk import ObjectStoragePath

            path = ObjectStoragePath(root)
            return path.fs, path.path
    import fsspec  # type: ignore[import-untyped]

    uri = urlunsplit(parts._replace(netloc=netloc))
    return cast("tuple[Any, str]", fsspec.core.url_to_fs(uri))


def open_files(root: str) -> Files:
    """Open the files below a path, a ``file://`` URI, or an object storage URI."""
    scheme, found, rest = root.partition("://")
    if not found:
        return LocalFiles(os.path.abspath(root))
    return LocalFiles(os.path.abspath(rest)) if scheme == "file" else RemoteFiles(root)
