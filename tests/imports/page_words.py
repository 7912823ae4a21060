"""How many words each page of the documentation may have.

`python -m tests.imports.page_words` prints the bounds that hold now.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = 45_000
"""Words of all pages together; it never rises."""
SLACK = 25
"""Words that a page may have less than its bound, before the bound must fall, too."""
MADE_SHORTER: Mapping[str, str] = {}
"""By page that was added since: the page that it made shorter."""
BOUNDS: Mapping[str, int] = {}
"""Words of each page at most; a bound only falls, unless another page falls by as much."""


def words() -> dict[str, int]:
    """Count the words of every page, with its code and tables."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return {page.relative_to(ROOT / "docs").as_posix(): len(page.read_text().split()) for page in pages}


if __name__ == "__main__":
    print("\n".join(f'    "{page}": {count},' for page, count in words().items()))
