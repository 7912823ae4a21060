"""Where files lie: on a disk that everybody mounts, or in an object storage. What a source of files asks of either."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_tx.sources.files.fileset import fingerprint, list_files, list_folders, split_glob

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

FilePath: TypeAlias = "Path | ObjectStoragePath"


def below(folder: str, name: str) -> str:
    """A folder in a folder, "." being itself."""
    return folder if name == "." else f"{folder.rstrip('/')}/{name}"


class NoBase(Exception):
    """A relative path, and nothing that it starts from."""


class Storage(ABC):
    """The files below a glob.

    :param path_glob: as it was given to the source.
    """

    def __init__(self, path_glob: str) -> None:
        self.folder, self.pattern = split_glob(path_glob)

    @abstractmethod
    def root(self) -> str:
        """The folder before the first wildcard, as every process can find it."""

    @abstractmethod
    def path(self, folder: str) -> FilePath: ...

    @abstractmethod
    def is_folder(self, folder: str) -> bool: ...

    @abstractmethod
    def files(self, folder: str, pattern: str) -> dict[str, Any]:
        """The files that match: names relative to `folder`, sorted, hidden ones left out; with what a listing says."""

    @abstractmethod
    def folders(self, folder: str, pattern: str) -> list[str]:
        """The names, relative to `folder`, of the folders that match, itself as "."; sorted, hidden ones left out."""

    @abstractmethod
    def size(self, folder: str, name: str, listed: Any) -> int:
        """Bytes of a file.

        :param listed: what `files` said of it.
        :raises OSError: it cannot be read.
        """

    @abstractmethod
    def fingerprint(
        self, folder: str, name: str, listed: Any = None, like: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Size and digest of a file, which tell whether it has changed.

        :param listed: what `files` has just said of it.
        :param like: an earlier one, whose kind of digest is wanted.
        :raises OSError: it cannot be read.
        """

    @abstractmethod
    def for_spark(self, folder: str, name: str) -> str:
        """A file as Spark's readers take it, with wildcards in its name taken literally."""


class Disk(Storage):
    """A disk that every worker and every Spark driver mounts at the same place.

    :param base: the folder that a relative glob starts from.
    """

    def __init__(self, path_glob: str, base: str | None) -> None:
        super().__init__(path_glob)
        self.base = base

    def root(self) -> str:
        """See `Storage`.

        :raises NoBase: it is relative, and nothing says to what.
        """
        folder = Path(self.folder).expanduser()
        if folder.is_absolute():
            return str(folder)
        base = self.base or os.environ.get("AIRFLOW_TX_DATA") or os.environ.get("AIRFLOW_HOME")
        if not base:
            raise NoBase
        return os.path.abspath(Path(base).expanduser() / folder)

    def path(self, folder: str) -> FilePath:
        return Path(folder)

    def is_folder(self, folder: str) -> bool:
        return os.path.isdir(folder)

    def files(self, folder: str, pattern: str) -> dict[str, Any]:
        return dict.fromkeys(list_files(Path(folder), pattern))

    def folders(self, folder: str, pattern: str) -> list[str]:
        return list_folders(Path(folder), pattern)

    def size(self, folder: str, name: str, listed: Any) -> int:
        return os.stat(Path(folder, name)).st_size

    def fingerprint(
        self, folder: str, name: str, listed: Any = None, like: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        path = Path(folder, name)
        if like is None:
            return fingerprint(path)
        # A sampled digest stands for any size, so that the limit between the two kinds may change.
        return fingerprint(path, whole=-1 if like["digest"].startswith("sample:") else like["size"])

    def for_spark(self, folder: str, name: str) -> str:
        return spark_path(Path(folder, name))


def spark_path(path: Path) -> str:
    """Spell a local path as Spark's readers take it."""
    return f"file://{hadoop_literal(str(path))}"


def hadoop_literal(text: str) -> str:
    """A text in which the wildcards of Spark's readers stand for themselves."""
    return "".join(f"\\{character}" if character in "*?[]{}\\" else character for character in text)
