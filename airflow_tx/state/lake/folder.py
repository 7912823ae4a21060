"""The files in the folder of a table, live or not, wherever deltalake reaches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, BinaryIO, cast

_PIECE = 8 * 2**20


class Folder:
    """A folder by its URI.

    :param options: storage options of deltalake.
    """

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self._uri = uri
        self._options = dict(options)

    @property
    def _is_local(self) -> bool:
        return "://" not in self._uri

    @cached_property
    def _handler(self) -> Any:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self._uri, self._options or None)

    def listed(self, folder: str) -> dict[str, int]:
        """Name the files below a folder by their paths from the table, with their sizes."""
        from pyarrow import fs  # type: ignore[import-untyped]

        if self._is_local and not os.path.isdir(self._uri):
            return {}
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        found = self._handler.get_file_info_selector(selector)
        return {each.path: each.size for each in found if each.type is fs.FileType.File}

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading at any position."""
        return cast("BinaryIO", self._handler.open_input_file(path))

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """Write a file; it is there once the block has ended."""
        import pyarrow as pa

        if self._is_local:
            os.makedirs(self._uri, exist_ok=True)
        parent = path.rpartition("/")[0]
        self._handler.create_dir(parent, True)
        out = self._handler._handler.open_output_stream(path, None)
        yield pa.PythonFile(_Bytes(out), mode="w")
        out.close()

    def remove(self, path: str) -> None:
        """Delete a file, and the folders that it leaves empty; an object store has none."""
        self._handler.delete_file(path)
        if self._is_local:
            with suppress(OSError):
                os.removedirs(os.path.join(self._uri, os.path.dirname(path)))


class _Bytes:
    """Hands pyarrow's buffers to a stream that takes bytes alone."""

    closed = False

    def __init__(self, out: Any) -> None:
        self._out = out

    def write(self, data: Any) -> int:
        self._out.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: the stream ends with its block."""

    def close(self) -> None:
        """Do nothing, as `flush`."""
