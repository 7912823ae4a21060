"""An authority for one test, with certificates for servers and clients, by the program openssl."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path


class Certificates:
    """PEM files of one authority: of its servers, and of a client.

    :param addresses: for which the servers' certificate is good.
    """

    def __init__(self, folder: Path, addresses: Sequence[str] = ("127.0.0.1",)) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.ca, self._ca_key = folder / "ca.pem", folder / "ca.key"
        self._openssl("req", "-x509", *_key(self._ca_key), "-subj", "/CN=authority", "-days", "30", "-out", self.ca)
        self.server_key, self.server = self._issue("server", ",".join(f"IP:{each}" for each in addresses))
        self.client_key, self.client = self._issue("client", "DNS:client")

    def context(self) -> ssl.SSLContext:
        """The side of a client that knows everything."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.client, self.client_key)
        context.check_hostname = False
        return context

    def _issue(self, name: str, names: str) -> tuple[Path, Path]:
        key, request, certificate = (self._folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        self._openssl("req", *_key(key), "-subj", f"/CN={name}", "-out", request)
        signed = ("-CA", self.ca, "-CAkey", self._ca_key, "-CAcreateserial", "-days", "30", "-extfile", extensions)
        self._openssl("x509", "-req", "-in", request, *signed, "-out", certificate)
        return key, certificate

    def _openssl(self, *arguments: str | Path) -> None:
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def _key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)
