"""Files in an object storage, as Airflow's `ObjectStoragePath` finds them: S3, Google Cloud Storage, Azure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_tx.connections.lookup import for_airflow
from airflow_tx.sources.files.globs import Listing
from airflow_tx.sources.files.storage import Fingerprint, Look, Storage
from airflow_tx.staging.files import RemoteFiles, literal

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
        self.conn_type = _CONN_TYPES.get(self.scheme, "generic")
        self.spark_folder = spark_folder

    def path(self, folder: str) -> ObjectStoragePath:
        from airflow.sdk import ObjectStoragePath

        if self.conn_id is not None:
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
