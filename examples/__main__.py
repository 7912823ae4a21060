"""Runs an example, like `script/example`."""

from __future__ import annotations

import sys

from examples.example import main

if __name__ == "__main__":
    sys.exit(main())
