"""Moto's S3, one request at a time: moto looks at a condition and puts in two steps.

Names of buckets ask for what other servers do: in `unconditional-…` no condition is looked at, in `lossy-…` the first
answer to each conditional put is lost after the put.

Usage: s3_app.py PACKAGES PORT
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any


def main(packages: str, port: str) -> None:
    sys.path.append(packages)
    from moto.server import (  # type: ignore[import-not-found, unused-ignore]
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import run_simple  # type: ignore[import-not-found, unused-ignore]

    app = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()
    lost = set[str]()

    def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith("/unconditional-"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with one_at_a_time:
            if not path.startswith("/lossy-") or "HTTP_IF_NONE_MATCH" not in environ or path in lost:
                return list(app(environ, start))
            lost.add(path)
            list(app(environ, lambda *_: None))
        start("503 Service Unavailable", [])
        return [b""]

    run_simple("127.0.0.1", int(port), serve, threaded=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
