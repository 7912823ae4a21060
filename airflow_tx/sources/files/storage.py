"""List the files that match a glob, on a disk or in object storage. Detect taken or changed files.

Airflow's `ObjectStoragePath` provides access to S3, Google Cloud Storage and Azure.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

from airflow_tx.base.dataset import Dataset
from airflow_tx.outputs import Files, Listed, LocalFiles, RemoteFiles, literal, spark_uri
from airflow_tx.sources.packed_names import pack, unpack

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath


# --- globs --------------------------------------------------------------------------------------------------------
# The files and folders that match a glob. A folder that cannot be listed raises an error. It never
# counts as empty.


Listing: TypeAlias = Callable[[str], Mapping[str, Listed]]
"""A function that lists a folder by its path below the root folder. The path "" means the root folder. It raises
OSError if the listing is incomplete."""


def matching(pattern: str, listing: Listing) -> dict[str, Listed]:
    """Return the sorted matches of a glob pattern. Python's `glob` would skip folders that it cannot list.

    :raises OSError: a folder that may contain matches cannot be listed.
    """
    return dict(sorted(_matching([part for part in pattern.split("/") if part], "", listing)))


def _matching(parts: Sequence[str], within: str, listing: Listing) -> Iterator[tuple[str, Listed]]:
    part, *rest = parts
    deep = part == "**"
    if deep and rest:  # "**" also matches zero folders
        yield from _matching(rest, within, listing)
    for name, found in listing(within).items():
        below = f"{within}/{name}" if within else name
        if not _fits(name, "*" if deep else part):
            continue
        if not rest:
            yield below, found
        # Follow a link only if a part of the pattern matches it. "**" finds the linked files at
        # their real location.
        if (
            found.is_folder
            if deep and not found.is_link
            else rest and not deep and (found.is_folder or found.is_link)
        ):
            yield from _matching(parts if deep else rest, below, listing)
    if deep and not rest and within:
        yield within, Listed(is_folder=True)


def is_hidden(name: str) -> bool:
    """Return whether Spark and other Hadoop readers ignore a name, since the file may be unfinished."""
    return (
        name.startswith(".")
        or (name.startswith("_") and "=" not in name)
        or name.endswith("._COPYING_")
    )


def _fits(name: str, part: str) -> bool:
    return (part[:1] == name[:1] or not is_hidden(name)) and fnmatchcase(name, part)


# --- storage ------------------------------------------------------------------------------------------------------


FilePath: TypeAlias = "Path | ObjectStoragePath"
Fingerprint: TypeAlias = Mapping[str, Any]
"""The size and the digest of a file."""
Look: TypeAlias = Mapping[str, Any]
"""The size of a file, and other details from its storage, such as times."""

# The digest of a file up to this size covers its entire content.
HASHED_WHOLE = 64 * 1024 * 1024
_SAMPLE = 1024 * 1024
_WHOLE = "content:"
"""The prefix of a digest that covers the entire content."""
_WILDCARDS = "*?["


def below(folder: str, name: str) -> str:
    """Return the path of a name below a folder. The name "." means the folder itself."""
    return folder if name == "." else f"{folder.rstrip('/')}/{name}"


def split_glob(path_glob: str) -> tuple[str, str]:
    """Split a glob into the folder before the first wildcard, and the pattern below it."""
    parts = path_glob.split("/")
    fixed = 0
    while fixed < len(parts) - 1 and not any(character in parts[fixed] for character in _WILDCARDS):
        fixed += 1
    return "/".join(parts[:fixed]) or ("/" if path_glob.startswith("/") else "."), "/".join(
        parts[fixed:]
    )


class OtherContent(Exception):
    """Signals that a file's content differs from the batch metadata.

    :ivar found: current size and digest of the file.
    """

    def __init__(self, found: Fingerprint) -> None:
        super().__init__(words_of(found))
        self.found = found


class Content:
    """The expected content of a file of a batch, which is checked while the file is read.

    :param expected: fingerprint whose digest covers the entire content.
    :ivar is_read: whether the file was read to its end, with the expected content.
    """

    def __init__(self, expected: Fingerprint) -> None:
        self.expected = expected
        self.is_read = False

    def digested(self, file: BinaryIO) -> BinaryIO:
        """Wrap a file. At its end, the wrapper raises `OtherContent` if the content was not as expected."""
        return cast("BinaryIO", _Digested(file, self))


class _Digested:
    def __init__(self, file: BinaryIO, content: Content) -> None:
        self._file = file
        self._content = content
        self._digest = hashlib.blake2b(digest_size=16)
        self._size = 0

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self._digest.update(found)
        self._size += len(found)
        if (size < 0 or len(found) < size) and not self._content.is_read:
            self._end()
        return found

    def _end(self) -> None:
        found = {"size": self._size, "digest": _WHOLE + self._digest.hexdigest()}
        if found != self._content.expected:
            raise OtherContent(found)
        self._content.is_read = True


class Storage(ABC):
    conn_type = ""
    """The type of the Airflow connection, or "" for a disk."""

    def __init__(self, path_glob: str) -> None:
        self.folder, self.pattern = split_glob(path_glob)

    def root(self) -> str | None:
        """Return the absolute path of the folder before the first wildcard.

        Return None if a relative path has no base.
        """
        return self.folder

    def datasets(self) -> list[Dataset]:
        """Return the dataset of the folder before the first wildcard."""
        root = self.root()
        return [] if root is None else [Dataset.of_folder(root)]

    @abstractmethod
    def path(self, folder: str) -> FilePath: ...

    @abstractmethod
    def opened(self, folder: str) -> Files:
        """Open the files below a folder."""

    def is_folder(self, folder: str) -> bool:
        """Return whether a folder exists.

        :raises OSError: the storage does not respond.
        """
        return self.opened(folder).is_folder("")

    def listing(self, folder: str, pattern: str) -> Listing:
        """Return a function that lists `folder` and its subfolders. It may omit files that do not match `pattern`."""
        return self.opened(folder).entries

    def entries(self, folder: str, pattern: str) -> dict[str, Listed]:
        """Return the files and folders that match, sorted by their path relative to `folder`, without hidden names.

        :raises OSError: a folder cannot be listed.
        """
        return matching(pattern, self.listing(folder, pattern))

    def folders(self, folder: str, pattern: str) -> list[str]:
        """Return the folders that match, sorted by their path relative to `folder`, without hidden names.

        "." is `folder` itself.

        :raises OSError: a folder cannot be listed.
        """
        found = self.entries(folder, pattern)
        names = {name for name, each in found.items() if each.is_folder}
        if set(pattern.split("/")) == {"**"}:
            names.add(".")
        return sorted(names)

    def look(self, folder: str, name: str) -> Look:
        """Return details that identify the current file without reading it. A replaced file has other details.

        :raises OSError: the file cannot be read.
        """
        return self.opened(folder).info(name)

    @abstractmethod
    def modified(self, folder: str, name: str) -> float:
        """Return a file's modification time, in seconds since 1970.

        :raises OSError: the file cannot be read.
        """

    def changed(self, folder: str, names: Iterable[str]) -> int | None:
        """Return the time of the latest change to some files, as an argument of `other`.

        Return None if the storage needs none.
        """
        return None

    @abstractmethod
    def other(
        self, folder: str, file: Mapping[str, Any], changed: int | None
    ) -> Fingerprint | None:
        """Return the fingerprint of a file that has changed since its batch.

        Return None if the file is unchanged or missing.

        :param file: fingerprint of the file in the batch.
        :param changed: result of the method `changed` for the batch. A file without a later change is not read.
        """

    def lacks(self, folder: str, files: Iterable[Mapping[str, Any]]) -> str | None:
        """Return a clause that names a missing or resized file of a batch, or None if there is none."""
        for file in files:
            path = below(folder, file["name"])
            try:
                size = self.look(folder, file["name"])["size"]
            except OSError:
                return f"file {path} is missing or unreadable"
            if size != file["size"]:
                return f"file {path} had {file['size']} bytes, and has {size}"
        return None

    @abstractmethod
    def fingerprint(
        self, folder: str, name: str, info: Look | None = None, like: Fingerprint | None = None
    ) -> Fingerprint:
        """Return the size and digest of a file, to detect a change.

        :param info: file details, if the storage has just returned them.
        :param like: earlier fingerprint, to compute the same kind of digest.
        :raises OSError: the file cannot be read.
        """

    def content(self, expected: Fingerprint) -> Content | None:
        """Return the object that checks a file during the read, or None if the fingerprint covers only part of it."""
        return None

    def for_spark(self, folder: str, name: str) -> str:
        """Return the path of a file for Spark's readers. Wildcards in its name are escaped."""
        return literal(spark_uri(below(folder, name)))


class Disk(Storage):
    """A disk that all workers and Spark drivers mount at the same path.

    :param base: folder of a relative glob.
    """

    def __init__(self, path_glob: str, base: str | None) -> None:
        super().__init__(path_glob)
        self.base = base

    def root(self) -> str | None:
        folder = Path(self.folder).expanduser()
        if folder.is_absolute():
            return str(folder)
        base = self.base or os.environ.get("AIRFLOW_TX_DATA") or os.environ.get("AIRFLOW_HOME")
        if not base:
            return None
        return os.path.abspath(Path(base).expanduser() / folder)

    def path(self, folder: str) -> FilePath:
        return Path(folder)

    def opened(self, folder: str) -> Files:
        return LocalFiles(folder)

    def entries(self, folder: str, pattern: str) -> dict[str, Listed]:
        links: set[str] = set()
        listing = self.listing(folder, pattern)

        def noted(within: str) -> Mapping[str, Listed]:
            found = listing(within)
            at = f"{within}/" if within else ""
            links.update(f"{at}{name}" for name, each in found.items() if each.is_link)
            return found

        found = matching(pattern, noted)
        return _once(folder, found, links) if links else found

    def modified(self, folder: str, name: str) -> float:
        return Path(folder, name).stat().st_mtime

    def changed(self, folder: str, names: Iterable[str]) -> int | None:
        times = [0]
        for name in names:
            with suppress(OSError):
                times.append(Path(folder, name).stat().st_ctime_ns)
        return max(times)

    def other(
        self, folder: str, file: Mapping[str, Any], changed: int | None
    ) -> Fingerprint | None:
        with suppress(OSError):
            status = Path(folder, file["name"]).stat()
            is_newer = changed is not None and status.st_ctime_ns > changed
            if is_newer or status.st_size != file["size"]:
                found = self.fingerprint(folder, file["name"], like=file)
                return found if found.items() - file.items() else None
        return None

    def content(self, expected: Fingerprint) -> Content | None:
        return Content(expected) if expected["digest"].startswith(_WHOLE) else None

    def fingerprint(
        self, folder: str, name: str, info: Look | None = None, like: Fingerprint | None = None
    ) -> Fingerprint:
        path = Path(folder, name)
        if like is None:
            return fingerprint(path)
        # Compute the same kind of digest as in `like`, since HASHED_WHOLE may differ between
        # versions.
        return fingerprint(path, whole=-1 if like["digest"].startswith("sample:") else like["size"])


def _once(folder: str, found: Mapping[str, Listed], links: set[str]) -> dict[str, Listed]:
    """Omit links to files that are already listed under another name."""
    root = os.path.realpath(folder)
    linked = [
        name for name in found if not links.isdisjoint(accumulate(name.split("/"), "{}/{}".format))
    ]
    seen = set(found).difference(linked)
    kept = set(seen)
    for name in linked:
        target = os.path.relpath(os.path.realpath(os.path.join(root, name)), root)
        if target not in seen:
            seen.add(target)
            kept.add(name)
    return {name: each for name, each in found.items() if name in kept}


def fingerprint(path: Path, whole: int = HASHED_WHOLE) -> Fingerprint:
    """Return the size and digest of a file, to detect a change.

    The digest of a file up to `whole` bytes covers the entire content, so a copy or a touch does not change it. The
    digest of a larger file covers the time of its last change, and its first and last MiB. Reading such a file
    completely would be too slow.

    :raises FileNotFoundError: the file does not exist.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.blake2b(digest_size=16)
        if status.st_size <= whole:
            for chunk in iter(lambda: file.read(_SAMPLE), b""):
                digest.update(chunk)
            return {"size": status.st_size, "digest": _WHOLE + digest.hexdigest()}
        digest.update(str(status.st_mtime_ns).encode())
        digest.update(file.read(_SAMPLE))
        file.seek(-min(_SAMPLE, status.st_size), os.SEEK_END)
        digest.update(file.read(_SAMPLE))
        return {"size": status.st_size, "digest": f"sample:{digest.hexdigest()}"}


def change_of(before: Look, now: Look | None) -> str:
    """Return a clause that explains how a file has changed."""
    if now is None:
        return "it is missing or unreadable now"
    if now["size"] != before["size"]:
        return f"it had {before['size']} bytes, but now has {now['size']}"
    return f"it still has {now['size']} bytes, but was written again"


def unspellable(path: str) -> tuple[str, str] | None:
    """Return the problem and the remedy if the ledger or Spark cannot represent a file name, or None."""
    name = path.partition("://")[2] or path
    try:
        path.encode()
        problem = "has a colon in its name, which Spark cannot read" if ":" in name else ""
    except UnicodeEncodeError:
        problem = "has a name that is not UTF-8"
    return (f"file {path!a} {problem}", "Rename it, then clear the task.") if problem else None


def words_of(found: Fingerprint | None) -> str:
    """Describe a file by its name and its fingerprint."""
    return f"{found['size']} bytes with {found['digest']}" if found else "missing or unreadable"


@dataclass(frozen=True)
class FilesPosition:
    """The position of a file source.

    The greatest name does not show which smaller names were taken, so the position has all taken names. Similar names,
    such as dates, are compressed to 2 to 5 bytes each. A transactional source drops the names of files that are no
    longer in the folder. Its position is therefore as small as the folder. An opaque source keeps these names.
    Otherwise it would retake a file that was removed and comes back.

    :param last: greatest name that was taken, or "" for none.
    :param taken: taken names. A transactional source keeps only names that are still in the folder.
    :param count: number of files ever taken.
    """

    last: str = ""
    taken: frozenset[str] = frozenset()
    count: int = 0

    def new(self, listing: Iterable[str]) -> list[str]:
        return [name for name in listing if name > self.last]

    def late(self, listing: Iterable[str]) -> list[str]:
        """Return the names that will never be taken, since a greater name was taken before they arrived."""
        return [name for name in listing if name <= self.last and name not in self.taken]

    def not_taken(self, listing: Iterable[str]) -> list[str]:
        """Return the names that were not taken. They include late names."""
        return [name for name in listing if name not in self.taken]

    def after(self, chosen: list[str], listing: Iterable[str] | None = None) -> FilesPosition:
        """Return the position after the names `chosen`.

        :param chosen: next names that are taken.
        :param listing: current names in the folder. Earlier names that are not among them are dropped. None keeps all
            names.
        """
        kept = self.taken if listing is None else self.taken.intersection(listing)
        return FilesPosition(max(self.last, *chosen), kept.union(chosen), self.count + len(chosen))

    def to_json(self) -> dict[str, Any]:
        return {"last": self.last, "count": self.count, "taken": pack(self.taken)}

    @classmethod
    def from_json(cls, value: Any) -> FilesPosition:
        """Parse the result of `to_json`. None means the position before the first file.

        :raises ValueError: the value is not a position of a file source.
        """
        if value is None:
            return cls()
        try:
            return cls(value["last"], unpack(value["taken"]), value["count"])
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"{str(value)[:80]!r} is not the position of a source of files"
            ) from error


# --- object storage -----------------------------------------------------------------------------------------------


_CONN_TYPES = {
    **dict.fromkeys(("s3", "s3a"), "aws"),
    **dict.fromkeys(("gs", "gcs"), "google_cloud_platform"),
    **dict.fromkeys(("abfs", "abfss", "adl"), "wasb"),
}
_ETAGS = ("ETag", "etag", "e_tag", "content_md5", "md5Hash")
_VERSIONS = (
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
    "created",
    "generation",
    "VersionId",
    "version_id",
)


class Objects(Storage):
    """The objects of a glob such as ``s3://bucket/orders/*.csv``.

    :param conn_id: Airflow connection, or None if the storage needs no connection.
    :param spark_folder: Spark's name of the folder before the first wildcard, or None for the same folder with Hadoop's
        scheme.
    """

    def __init__(self, path_glob: str, conn_id: str | None, spark_folder: str | None) -> None:
        super().__init__(path_glob)
        self.conn_id = conn_id
        self.scheme = path_glob.partition("://")[0]
        self.conn_type = _CONN_TYPES.get(self.scheme, "generic")
        self.spark_folder = spark_folder

    def path(self, folder: str) -> ObjectStoragePath:
        from airflow.sdk import ObjectStoragePath

        if self.conn_id is not None:
            from airflow_tx.base.connections import for_airflow

            for_airflow(self.conn_id)
        return ObjectStoragePath(folder, conn_id=self.conn_id)

    def opened(self, folder: str) -> RemoteFiles:
        return RemoteFiles(folder, self.path(folder))

    def is_folder(self, folder: str) -> bool:
        return folder == self.folder or super().is_folder(folder)

    def listing(self, folder: str, pattern: str) -> Listing:
        if "**" in pattern.split("/") and self.scheme in _CONN_TYPES:
            tree = self.opened(folder).tree()
            return lambda name: tree.get(name, {})
        return super().listing(folder, pattern)

    def look(self, folder: str, name: str) -> Look:
        info = super().look(folder, name)
        return {
            key: info[key] for key in ("size", *_ETAGS, *_VERSIONS) if info.get(key) is not None
        }

    def modified(self, folder: str, name: str) -> float:
        return self.opened(folder).modified(name).timestamp()

    def other(
        self, folder: str, file: Mapping[str, Any], changed: int | None
    ) -> Fingerprint | None:
        with suppress(OSError):
            info = self.opened(folder).listed(file["name"])
            found = self.fingerprint(folder, file["name"], info)
            return found if found.items() - file.items() else None
        return None

    def fingerprint(
        self, folder: str, name: str, info: Look | None = None, like: Fingerprint | None = None
    ) -> Fingerprint:
        found = self.opened(folder).info(name) if info is None else info
        size = int(found["size"])
        etag = next((str(found[key]) for key in _ETAGS if found.get(key)), None)
        if etag is not None:
            return {"size": size, "digest": "etag:" + etag.strip('"')}
        modified = self.opened(folder).modified(name)
        return {"size": size, "digest": f"modified:{modified.isoformat()}"}

    def for_spark(self, folder: str, name: str) -> str:
        if self.spark_folder is None:
            return super().for_spark(folder, name)
        below = f"{folder.removeprefix(self.folder).strip('/')}/{name}".lstrip("/")
        return f"{self.spark_folder.rstrip('/')}/{literal(below)}"
