"""What only Linux has: the package can be imported without it, and reads the files of its kernel in one place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_tx"

# Imports what is named, with the libraries that it needs, and then imports the package again as macOS would, where the
# modules `socket` and `fcntl` have fewer names.
IMPORT_AGAIN = """
import fcntl, importlib, socket, sys

for name in sys.argv[1:]:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "airflow_tx"]:
    del sys.modules[name]
del socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT, fcntl.F_SETPIPE_SZ
sys.platform = "darwin"
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_all_modules_can_be_imported_without_the_linux_socket_options() -> None:
    names = ["airflow_tx.state.sql.database", "airflow_tx.spark.writers", "airflow_tx.testing.servers.zookeeper"]
    done = subprocess.run([sys.executable, "-c", IMPORT_AGAIN, *names], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_only_one_module_reads_the_proc_file_system() -> None:
    readers = {file.name for file in PACKAGE.rglob("*.py") if '"/proc' in file.read_text()}
    # `test_a_deadline_uses_plain_time_if_the_kernel_does_not_count_stalls` is the test of this one.
    assert readers == {"deadline.py"}
