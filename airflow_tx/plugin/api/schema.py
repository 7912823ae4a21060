"""`python -m airflow_tx.plugin.api.schema`: writes the OpenAPI description that the client of the page is made from."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_tx.plugin.api.app import PREFIX, make_app

OPENAPI = Path(__file__).resolve().parents[1] / "ui" / "openapi.json"


def openapi_text() -> str:
    """Describe the API, for `ui/openapi.json`."""
    schema = {**make_app().openapi(), "servers": [{"url": PREFIX}]}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPENAPI.write_text(openapi_text())
