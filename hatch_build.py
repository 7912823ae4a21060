"""What a wheel says of itself beside pyproject.toml: its long description, and the addresses of the project."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Metadata(MetadataHookInterface):
    """Take both from `home` in pyproject.toml, so that the address of the project stands once."""

    def update(self, metadata: dict[str, Any]) -> None:
        home = str(self.config.get("home", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, home)}
        metadata["urls"] = addresses(home)


def addresses(home: str) -> dict[str, str]:
    """Give the addresses that an index shows; none if the project is public nowhere."""
    pages = {
        "Homepage": "",
        "Documentation": "/blob/main/docs/index.md",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Issues": "/issues",
        "Source": "/tree/main",
    }
    return {name: home + page for name, page in pages.items()} if home else {}


def described(text: str, home: str) -> str:
    """Make the links of the README work outside of the repository: whole addresses, or without any the bare words."""
    picture = rf"\1({home}/raw/main/\2)" if home else ""
    text = re.sub(r"(!\[[^\]]*\])\((?!https?:)([^)]+)\)\n?", picture, text)
    page = rf"[\1]({home}/blob/main/\2)" if home else r"\1"
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)]+)\)", page, text)
