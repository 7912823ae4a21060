"""The few operations on files that staging and the sources of files need, on a disk or on an object storage.

Local paths use nothing but the standard library. Any other URI goes to fsspec. Airflow's ObjectStoragePath resolves a
connection in the URI (``s3://conn@bucket/...``). Where there is no Airflow, as in a Spark driver, the connection is
dropped: the driver then signs in with what its own environment gives it.
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
    """The entry of a name in a listing.

    :param info: of a file, what its storage says of it; a disk says nothing.
    :param is_link: whether it has another name, too, below which it is found.
    """

    is_folder: bool
    info: Any = None
    is_link: bool = False


def spark_uri(uri: str) -> str:
    """Translate a path or URI into the spelling that Hadoop's file systems, and so Spark, know."""
    scheme, found, rest = uri.partition("://")
    if not found:
        return f"file://{uri}"
    host, slash, path = rest.partition("/")
    return f"{_SPARK_SCHEMES.get(scheme, scheme)}://{host.rpartition('@')[2]}{slash}{path}"


def literal(uri: str) -> str:
    """Quote a file for Spark's readers: what would be a wildcard in its name is none."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", uri)


class Sink:
    """A file that is written part by part, for pyarrow. An error of the file is no error of the rows.

    :param making: as `Files._made`.
    :ivar size: the bytes that were written.
    """

    closed = False

    def __init__(self, out: BinaryIO, making: Callable[[], AbstractContextManager[None]]) -> None:
        self._out = out
        self._making = making
        self.size = 0

    def write(self, content: bytes) -> int:
        """Write a part; StagingUnavailable: it cannot be written."""
        with self._making():
            self._out.write(content)
        self.size += len(content)
        return len(content)

    def flush(self) -> None:
        """Do nothing: the file is there when it is whole."""


class Files(ABC):
    """Files below one root, an absolute path or URI; names are relative to it, with ``/`` between parts."""

    def __init__(self, root: str) -> None:
        self.root = root

    def uri(self, name: str) -> str:
        """Name a file by a path or URI that another process can open."""
        return f"{self.root}/{name}" if name else self.root

    def spark_uri(self, name: str) -> str:
        """Name it in the spelling that Spark's file systems know."""
        return spark_uri(self.uri(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file so that a reader sees the whole file or nothing; its folder is made.

        :raises StagingUnavailable: it is not there: the disk is full, or writing is not allowed.
        """
        with self._made(name):
            self._write(name, content)

    @contextmanager
    def writing(self, name: str) -> Iterator[Sink]:
        """Let a file of any size be written within the block; it is there once the block has ended well.

        :raises StagingUnavailable: as `write`.
        """
        put = ExitStack()
        with self._made(name):
            out = put.enter_context(self._opened(name))
        try:
            yield Sink(out, partial(self._made, name))
        except BaseException as error:
            # The end of a file writes what is left of it. On a full disk, that is another error, without the remedy.
            with suppress(OSError):
                put.__exit__(type(error), error, error.__traceback__)
            raise
        with self._made(name):
            put.close()

    def copy(self, source: str, name: str) -> None:
        """Copy a file that never changes, without moving its content through this process where the store can.

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

    def list(self, name: str) -> dict[str, int | None]:
        """Name the entries of a folder, with their size (None: a folder); nothing if there is no such folder."""
        sizes: dict[str, int | None] = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for each, listed in self.entries(name).items():
                with suppress(FileNotFoundError):  # removed since it was listed
                    path = f"{name}/{each}".lstrip("/")
                    sizes[each] = None if listed.is_folder else self.size(path, listed)
        return sizes

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
    def _opened(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open it for writing, and let it be there at the end of the block, or raise OSError."""

    @abstractmethod
    def _copy(self, source: str, name: str) -> None:
        """Copy it, or raise OSError."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Read a whole file."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file for reading at any position."""

    def size(self, name: str, listed: Listed | None = None) -> int:
        """Count the bytes of a file; `listed` is what `entries` said of it."""
        info = listed.info if listed else None
        return int((info or self.info(name))["size"])

    @abstractmethod
    def entries(self, name: str) -> dict[str, Listed]:
        """Name the current entries of a folder; a folder that was removed since its parent was listed has none.

        :raises OSError: it cannot be listed.
        """

    @abstractmethod
    def info(self, name: str) -> Mapping[str, Any]:
        """Ask for the current size of a file, and other facts of its storage."""

    @abstractmethod
    def is_folder(self, name: str) -> bool:
        """Ask whether there is such a folder; OSError: that cannot be found out."""

    @abstractmethod
    def remove_tree(self, name: str) -> None:
        """Remove a folder with all files; a missing file is no error."""


class LocalFiles(Files):
    """A folder of this machine or a mounted one."""

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
            except OSError:  # not every file system has links
                shutil.copyfile(self._path(source), draft)

    @contextmanager
    def _put(self, name: str) -> Iterator[Path]:
        """Give the place of a file that gets its name at the end of the block."""
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
        # A link that leads nowhere at this moment is an entry, too: it fails where it is read.
        return {
            name: Listed(is_dir, is_link=is_link)
            for name, is_dir, is_file, is_link in entries
            if is_dir or is_file or is_link
        }

    def info(self, name: str) -> Mapping[str, Any]:
        status = self._path(name).stat()
        # A copy may keep the time of its original; no user can set the time of the inode.
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
    """An object storage, or any other file system that fsspec knows.

    :param path: the same root, as Airflow finds it; None: a connection in the root says whether Airflow finds it.
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
        except Exception as error:  # clients of stores have errors of their own kind for this
            reason = " ".join(str(error).split()) or type(error).__name__
            raise StagingUnreachable(uri=self.uri(name), reason=reason) from error

    def _write(self, name: str, content: bytes) -> None:
        self._ask(self._fs.makedirs, name.rpartition("/")[0], exist_ok=True)
        self._ask(self._fs.pipe_file, name, content)

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        # A client that writes to the store would close its file behind an error, and so put half of it there.
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
            return {}  # a folder is there as long as something is in it
        listed = {self._below(name, info): _listed(info) for info in found}
        return {each: listing for each, listing in listed.items() if each}

    def tree(self) -> dict[str, dict[str, Listed]]:
        """List all folders at once, by their names: of a store without folders, one request tells of 1,000 objects."""
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
        """Tell what the last listing said of a file; a client that has forgotten it asks."""
        return cast("Mapping[str, Any]", self._ask(self._fs.info, name))

    def modified(self, name: str) -> datetime:
        """Tell when a file was last changed."""
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
        """Forget what the client knows of the store: files come and go."""
        self._fs.invalidate_cache()
        return self._fs

    def _below(self, name: str, info: Mapping[str, Any]) -> str:
        return str(info["name"]).removeprefix(self._path(name)).strip("/")


def _listed(info: Mapping[str, Any]) -> Listed:
    # A marker that some tools make for an empty folder is an object whose name ends in "/".
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
    """Open the files below a path, a ``file://`` URI, or the URI of an object storage."""
    scheme, found, rest = root.partition("://")
    if not found:
        return LocalFiles(os.path.abspath(root))
    return LocalFiles(os.path.abspath(rest)) if scheme == "file" else RemoteFiles(root)
