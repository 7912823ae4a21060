"""The bundle of the page: one file, which a browser keeps until it changes."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, HTTPException, status
from fastapi.responses import FileResponse

BUNDLE = Path(__file__).resolve().parents[1] / "board" / "main.umd.cjs"
_YEAR = 365 * 24 * 3600

bundle_router = APIRouter(prefix="/board")


@cache
def bundle_digest() -> str:
    """Digest the bundle, for an address that changes whenever it does; "" if there is none."""
    return hashlib.sha256(BUNDLE.read_bytes()).hexdigest()[:16] if BUNDLE.is_file() else ""


@bundle_router.get("/main.umd.cjs", include_in_schema=False, response_class=FileResponse)
def get_bundle(user: GetUserDep) -> FileResponse:
    """Send the page."""
    if not BUNDLE.is_file():
        raise HTTPException(
            status.HTTP_404_NOT_FOUND, "The page was not built: see airflow_tx/plugin/ui."
        )
    headers = {"Cache-Control": f"private, max-age={_YEAR}, immutable"}
    return FileResponse(BUNDLE, media_type="text/javascript", headers=headers)
