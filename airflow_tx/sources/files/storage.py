"""Files below a glob, on a disk or in an object storage: which there are, which were taken, whether one changed.

Objects are found as Airflow's `ObjectStoragePath` does: S3, Google Cloud Storage, Azure.
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
# Files and folders that match a glob. A folder that cannot be listed is an error, and never an empty one.


Listing: TypeAlias = Callable[[str], Mapping[str, Listed]]
"""Lists a folder, "" being the one that all names are relative to; OSError: it cannot be listed whole."""


def matching(pattern: str, listing: Listing) -> dict[str, Listed]:
    """Find what matches a pattern as `glob` reads it, sorted; `glob` itself skips folders that it cannot list.

    :raises OSError: a folder that the pattern leads into cannot be listed.
    """
    return dict(sorted(_matching([part for part in pattern.split("/") if part], "", listing)))


def _matching(parts: Sequence[str], within: str, listing: Listing) -> Iterator[tuple[str, Listed]]:
    part, *rest = parts
    deep = part == "**"
    if deep and rest:  # it also matches no folder
        yield from _matching(rest, within, listing)
    for name, found in listing(within).items():
        below = f"{within}/{name}" if within else name
        if not _fits(name, "*" if deep else part):
            continue
        if not rest:
            yield below, found
        # A link is followed where the pattern names it, and not by "**", which finds its files where they are.
        if (
            found.is_folder
            if deep and not found.is_link
            else rest and not deep and (found.is_folder or found.is_link)
        ):
            yield from _matching(parts if deep else rest, below, listing)
    if deep and not rest and within:
        yield within, Listed(is_folder=True)


def is_hidden(name: str) -> bool:
    """Ask whether Hadoop's readers, and so Spark, leave a name out: others write there, and have not finished."""
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
"""Size and digest of a file."""
Look: TypeAlias = Mapping[str, Any]
"""Size of a file, and what else its storage says of it, such as times."""

# Up to here a file is read whole to find out whether it has changed.
HASHED_WHOLE = 64 * 1024 * 1024
_SAMPLE = 1024 * 1024
_WHOLE = "content:"
"""How the digest of a whole file begins."""
_WILDCARDS = "*?["


def below(folder: str, name: str) -> str:
    """Name a folder in a folder, "." being itself."""
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
    """A file has another content than the batch.

    :ivar found: its size and digest.
    """

    def __init__(self, found: Fingerprint) -> None:
        super().__init__(words_of(found))
        self.found = found


class Content:
    """The content that a file of a batch has, which is checked while the file is read.

    :param expected: the fingerprint of a file that is digested whole.
    """

    def __init__(self, expected: Fingerprint) -> None:
        self.expected = expected
        self.is_read = False

    def digested(self, file: BinaryIO) -> BinaryIO:
        """Give a file to read, which raises `OtherContent` in place of its last bytes if it has another content."""
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
    """Of the Airflow connection that it needs; none for a disk."""

    def __init__(self, path_glob: str) -> None:
        self.folder, self.pattern = split_glob(path_glob)

    def root(self) -> str | None:
        """Find the folder before the first wildcard, as every process can reach it; None: nothing says where it is."""
        return self.folder

    def datasets(self) -> list[Dataset]:
        """Name the folder before the first wildcard."""
        root = self.root()
        return [] if root is None else [Dataset.of_folder(root)]

    @abstractmethod
    def path(self, folder: str) -> FilePath: ...

    @abstractmethod
    def opened(self, folder: str) -> Files:
        """Open the files below a folder."""

    def is_folder(self, folder: str) -> bool:
        """Ask whether it is there; OSError: that cannot be found out."""
        return self.opened(folder).is_folder("")

    def listing(self, folder: str, pattern: str) -> Listing:
        """Make a lister of `folder` and the folders below it; `pattern` says how deep the listing goes."""
        return self.opened(folder).entries

    def entries(self, folder: str, pattern: str) -> dict[str, Listed]:
        """List what matches, with what a listing says: relative to `folder`, sorted, without hidden names.

        :raises OSError: a folder cannot be listed, so its content is unknown.
        """
        return matching(pattern, self.listing(folder, pattern))

    def folders(self, folder: str, pattern: str) -> list[str]:
        """List the folders that match: names relative to `folder`, itself as "."; sorted, without hidden ones.

        :raises OSError: as `entries`.
        """
        found = self.entries(folder, pattern)
        names = {name for name, each in found.items() if each.is_folder}
        if set(pattern.split("/")) == {"**"}:
            names.add(".")
        return sorted(names)

    def look(self, folder: str, name: str) -> Look:
        """Describe the current file, without reading it: a file that replaces it has another description.

        :raises OSError: it cannot be read.
        """
        return self.opened(folder).info(name)

    @abstractmethod
    def modified(self, folder: str, name: str) -> float:
        """Tell when a file was changed, in seconds since 1970.

        :raises OSError: it cannot be read.
        """

    def changed(self, folder: str, names: Iterable[str]) -> int | None:
        """Tell when the last of some files was changed, for `other`; None: the storage needs no time for that."""
        return None

    @abstractmethod
    def other(
        self, folder: str, file: Mapping[str, Any], changed: int | None
    ) -> Fingerprint | None:
        """Find size and digest of a file of a batch that is another one by now; None: it is the same, or gone.

        :param changed: of the batch, what `changed` said then. A file that has not changed since is not read.
        """

    def lacks(self, folder: str, files: Iterable[Mapping[str, Any]]) -> str | None:
        """Say which of the files of a batch is not there in its size; None: all are."""
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
        """Find size and digest of a file, which show whether it has changed.

        :param info: what its storage has just said of it.
        :param like: an earlier one, whose kind of digest is wanted.
        :raises OSError: it cannot be read.
        """

    def content(self, expected: Fingerprint) -> Content | None:
        """Give what checks a file while it is read; None: its fingerprint is found without reading it whole."""
        return None

    def for_spark(self, folder: str, name: str) -> str:
        """Spell a file as Spark's readers take it, with wildcards in its name taken literally."""
        return literal(spark_uri(below(folder, name)))


class Disk(Storage):
    """A disk that every worker and every Spark driver mounts at the same path; a relative glob starts from `base`."""

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
        # A sampled digest is valid for any size, so that the limit between the two kinds may change.
        return fingerprint(path, whole=-1 if like["digest"].startswith("sample:") else like["size"])


def _once(folder: str, found: Mapping[str, Listed], links: set[str]) -> dict[str, Listed]:
    """Leave out the names of which a link leads to what another name has found, too."""
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
    """Find size and digest of a file, which show whether it has changed.

    Of a file up to `whole` bytes the digest covers the content, so a copy or a touch changes nothing. Of a larger one
    it covers the time of its last change and the first and last MiB: reading it twice over would cost more than
    processing it.

    :raises FileNotFoundError: there is none.
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
    """Say how a file differs from what it was."""
    if now is None:
        return "it is missing or unreadable now"
    if now["size"] != before["size"]:
        return f"it had {before['size']} bytes, and has {now['size']}"
    return f"it has {now['size']} bytes as before, and was written at another time"


def unspellable(path: str) -> tuple[str, str] | None:
    """Say that the ledger or Spark cannot spell a file, and the remedy; None: both can."""
    name = path.partition("://")[2] or path
    try:
        path.encode()
        problem = "has a colon in its name, which Spark cannot read" if ":" in name else ""
    except UnicodeEncodeError:
        problem = "has a name that is not UTF-8"
    return (f"file {path!a} {problem}", "Rename it, then clear the task.") if problem else None


def words_of(found: Fingerprint | None) -> str:
    """Describe a file by its fingerprint."""
    return f"{found['size']} bytes with {found['digest']}" if found else "missing or unreadable"


@dataclass(frozen=True)
class FilesPosition:
    """The position of a source of files.

    The greatest name taken does not say which of the smaller names were taken, so the position carries them all,
    packed: 2 to 5 bytes a file for names that are mostly alike, such as dated ones. Where names are taken in order, one
    whose file was removed from the folder is dropped, so the position stays as small as the folder. Where late names
    are taken, it is kept: the file may come back, and would be taken twice.

    :param last: the greatest name taken; "" for none.
    :param taken: names that were taken, and, of names in order, are still in the folder.
    :param count: how many files were taken in all.
    """

    last: str = ""
    taken: frozenset[str] = frozenset()
    count: int = 0

    def new(self, listing: Iterable[str]) -> list[str]:
        return [name for name in listing if name > self.last]

    def late(self, listing: Iterable[str]) -> list[str]:
        """List the names that were not taken and will not be: they came after a greater name was taken."""
        return [name for name in listing if name <= self.last and name not in self.taken]

    def not_taken(self, listing: Iterable[str]) -> list[str]:
        """List the names that were not taken, late ones included."""
        return [name for name in listing if name not in self.taken]

    def after(self, chosen: list[str], listing: Iterable[str] | None = None) -> FilesPosition:
        """Advance by `chosen`, the next names; those taken before are dropped unless in `listing`, None keeps all."""
        kept = self.taken if listing is None else self.taken.intersection(listing)
        return FilesPosition(max(self.last, *chosen), kept.union(chosen), self.count + len(chosen))

    def to_json(self) -> dict[str, Any]:
        return {"last": self.last, "count": self.count, "taken": pack(self.taken)}

    @classmethod
    def from_json(cls, value: Any) -> FilesPosition:
        """Read what `to_json` wrote; None is the position before the first file. ValueError: it is something else."""
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
    """The objects below a glob such as ``s3://bucket/orders/*.csv``; a name is hidden if a part of it begins with ".".

    :param conn_id: the Airflow connection; None: the storage is found without one.
    :param spark_folder: what Spark calls the folder before the first wildcard; None: the same with Hadoop's scheme.
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
