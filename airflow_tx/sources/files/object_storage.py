"""Files in an object storage, as Airflow's `ObjectStoragePath` finds them: S3, Google Cloud Storage, Azure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.connections.lookup import for_airflow
from airflow_tx.sources.files.globs import Listed, Listing
from airflow_tx.sources.files.storage import Fingerprint, Look, Storage, below
from airflow_tx.staging.files import literal, spark_scheme

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

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
        scheme = spark_scheme(self.scheme)
        below = literal(self.folder.partition("://")[2])
        self.spark_folder = (spark_folder or f"{scheme}://{below}").rstrip("/")

    @property
    def conn_type(self) -> str:
        return _CONN_TYPES.get(self.scheme, "generic")

    def root(self) -> str:
        return self.folder

    def path(self, folder: str) -> ObjectStoragePath:
        from airflow.sdk import ObjectStoragePath

        if self.conn_id is not None:
            for_airflow(self.conn_id)
        return ObjectStoragePath(folder, conn_id=self.conn_id)

    def is_folder(self, folder: str) -> bool:
        return folder == self.folder or bool(self._fresh(folder).fs.isdir(self.path(folder).path))

    def listing(self, folder: str, pattern: str) -> Listing:
        path = self._fresh(folder)
        root = str(path.fs._strip_protocol(path.path)).rstrip("/")
        if "**" in pattern.split("/") and self.scheme in _CONN_TYPES:
            # They have no folders: one request tells of a thousand objects, however deep they lie.
            tree = _tree(
                {_below(root, info): info for info in path.fs.find(root, detail=True).values()}
            )
            return lambda name: tree.get(name, {})

        def listed(name: str) -> dict[str, Listed]:
            try:
                found = path.fs.ls(below(root, name) if name else root, detail=True)
            except FileNotFoundError:
                return {}  # a folder is there as long as something is in it
            infos = {
                _below(root, info).rpartition("/")[2]: info
                for info in found
                if _below(root, info) != name
            }
            return {
                each: _listed(info)
                for each, info in infos.items()
                if each and not each.startswith(".")
            }

        return listed

    def size(self, folder: str, name: str, listed: Any) -> int:
        return int(listed["size"])

    def look(self, folder: str, name: str) -> Look:
        path = self._fresh(folder) / name
        info: Mapping[str, Any] = path.fs.info(path.path)
        return {
            key: info[key] for key in ("size", *_ETAGS, *_VERSIONS) if info.get(key) is not None
        }

    def fingerprint(
        self, folder: str, name: str, listed: Any = None, like: Fingerprint | None = None
    ) -> Fingerprint:
        path = (self._fresh(folder) if listed is None else self.path(folder)) / name
        info: Mapping[str, Any] = path.fs.info(path.path) if listed is None else listed
        etag = next((str(info[key]) for key in _ETAGS if info.get(key)), None)
        if etag is not None:
            return {"size": int(info["size"]), "digest": "etag:" + etag.strip('"')}
        return {
            "size": int(info["size"]),
            "digest": f"modified:{path.fs.modified(path.path).isoformat()}",
        }

    def for_spark(self, folder: str, name: str) -> str:
        below = f"{folder.removeprefix(self.folder).strip('/')}/{name}".lstrip("/")
        return f"{self.spark_folder}/{literal(below)}"

    def _fresh(self, folder: str) -> ObjectStoragePath:
        """Make the path, and forget what this process knows of its storage: files come and go."""
        path = self.path(folder)
        path.fs.invalidate_cache()
        return path


def _below(root: str, info: Mapping[str, Any]) -> str:
    return str(info["name"]).removeprefix(root).strip("/")


def _listed(info: Mapping[str, Any]) -> Listed:
    # A marker that some tools make for an empty folder is an object whose name ends in "/".
    is_folder = info["type"] == "directory" or str(info["name"]).endswith("/")
    return Listed(is_folder, None if is_folder else info)


def _tree(infos: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Listed]]:
    """Sort objects into the folders that their names spell."""
    tree: dict[str, dict[str, Listed]] = {}
    for name, info in infos.items():
        if not name or re.search(r"(^|/)\.", name):
            continue
        folder, _, last = name.rpartition("/")
        tree.setdefault(folder, {})[last] = _listed(info)
        while folder:
            folder, _, last = folder.rpartition("/")
            tree.setdefault(folder, {})[last] = Listed(is_folder=True)
    return tree
