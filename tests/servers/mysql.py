"""A real MySQL server: Debian has it in its unstable release alone, so its packages are unpacked and not installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from airflow_tx.base.errors import TxError
from airflow_tx.testing.deadline import run_command
from tests.servers.jars import cache_dir
from tests.servers.mariadb import LocalMariaDB

_PACKAGE = "mysql-server-core"
_RELEASE = "unstable"
# Only Debian's scripts around the server need them.
_UNUSED = ("perl", "libperl")


class MySQLUnavailable(TxError):
    """The packages cannot be had here."""

    template = "MySQL cannot be fetched from Debian's unstable release: {reason}."


class LocalMySQL(LocalMariaDB):
    """One MySQL server on 127.0.0.1 at a free port, with user, password and settings of `LocalMariaDB`."""

    title = "MySQL"
    slug = "mysql"
    # Its programs are in the user's cache, which nobody else may read.
    system_user = "root"

    def _own_settings(self, *, fsync: bool) -> dict[str, str]:
        return {
            "user": self.system_user,
            "basedir": str(mysql_root() / "usr"),
            "mysqlx": "OFF",
            "secure-file-priv": "",
            "disable-log-bin": "ON",
        }

    def _program(self) -> list[str]:
        # It needs the C library of its own release.
        libraries = mysql_root() / "usr" / "lib" / "x86_64-linux-gnu"
        loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)]
        return [*loader, str(mysql_root() / "usr" / "sbin" / "mysqld")]

    def _install(self) -> None:
        data = ("--no-defaults", f"--datadir={self.data_dir / 'data'}")
        options = [f"--{name}={self._settings[name]}" for name in ("user", "basedir", "secure-file-priv")]
        self._run_program(*self._program(), *data, *options, "--initialize-insecure")


def mysql_root() -> Path:
    """The folder with the unpacked packages; they are fetched once and kept.

    :raises MySQLUnavailable: they are not here and cannot be fetched.
    """
    folder = cache_dir() / _PACKAGE
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix="mysql-", dir=folder.parent) as found:
                shutil.move(_unpacked(Path(found)), folder)
    return folder


def _unpacked(folder: Path) -> Path:
    sources = _told("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
    if not sources or _told("dpkg", "--print-architecture") != "amd64":
        raise MySQLUnavailable(reason="this is no Debian on amd64 whose lists of packages are there (apt-get update)")
    (folder / "sources.list").write_text(f"deb {sources.splitlines()[0]} {_RELEASE} main\n")
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    apt = ["apt-get", "-q", "-o", f"Dir::Etc::sourcelist={folder / 'sources.list'}", "-o", "Dir::Etc::sourceparts=-"]
    # The packages of this machine do not count: every library comes along.
    for name, place in (("Dir::State::lists", "lists"), ("Dir::Cache", "cache"), ("Dir::State::status", "status")):
        apt += ["-o", f"{name}={folder / place}"]
    _told(*apt, "update")
    _told(*apt, "install", "-y", "--no-install-recommends", "--download-only", _PACKAGE)
    for package in sorted((folder / "cache" / "archives").glob("*.deb")):
        if not package.name.startswith(_UNUSED):
            _told("dpkg", "-x", str(package), str(folder / "root"))
    return folder / "root"


def _told(*command: str) -> str:
    """What a program of Debian prints.

    :raises MySQLUnavailable: it is not there, or fails.
    """
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        done = run_command(command, env=environment, capture_output=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MySQLUnavailable(reason=f"{command[0]}: {type(error).__name__}") from None
    if done.returncode != 0:
        raise MySQLUnavailable(reason=f"{command[0]} ended with {done.returncode}")
    return done.stdout.strip()
