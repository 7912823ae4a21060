"""Generates the reference pages of the site, and mends links that leave it. mkdocs calls these functions as hooks."""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from error_pages import errors  # mkdocs puts the folder of a hook on the path
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from rule_pages import rules
from storm_page import storm
from value_pages import values

LOG = logging.getLogger("mkdocs.hooks.reference")
"""`mkdocs build --strict` counts only the warnings of loggers below `mkdocs`."""
UPWARDS = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[\w./-]+)(?:#[\w-]+)?\)")
"""A link to a folder above: to a page, or out of `docs/`."""
ROOMS = {
    "airflow_tx": "DAGs: transactions, sources, operators",
    "airflow_tx.sources": "Sources of your own",
    "airflow_tx.state": "States, aggregators, queries",
    "airflow_tx.spark": "Spark applications",
    "airflow_tx.acks": "Message trees",
    "airflow_tx.testing": "Tests of your own",
}

RANKS = {"reference/api.md": 0.5, "reference/errors.md": 0.5, "reference/rules.md": 0.5, "changelog.md": 0.1}
"""How the search ranks a page. Below 1, a guide with the same words comes first."""

EXIT = """
| exit code | meaning |
|---|---|
| 0 | the command did, or showed, what you asked for |
| 1 | it was refused or failed, `verify` found something, `restate` or `backfill` is not done, or `diff` is not equal |
| 2 | the command line cannot be understood, or `diff` cannot compare now; nothing was changed |
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of the code."""
    pages = {"reference/api.md": api(), "reference/commands.md": commands(), "reference/errors.md": errors()}
    pages["reference/values.md"] = values()
    pages["reference/rules.md"] = rules()
    pages["reference/storm.md"] = storm()
    pages["changelog.md"] = changelog()
    for path, text in pages.items():
        ranked = f"---\nsearch: {{boost: {RANKS.get(path, 1)}}}\n---\n{text}"
        files.append(File.generated(config, path, content=ranked))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links to files of the repository that are not pages by their names, and warn if a file is missing."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        if not target.startswith("../"):
            return link[0]
        if not Path("docs", target).exists():
            LOG.warning(
                "Doc file '%s' contains a link '%s', but the repository has no such file.", page.file.src_uri, link[2]
            )
        return link[1]

    return UPWARDS.sub(shown, markdown)


def changelog() -> str:
    """Give the page of changes: the file of the repository, whose links lead to pages."""
    return Path("CHANGELOG.md").read_text().replace("](docs/", "](")


# --- the API


def api() -> str:
    """Give the page of all public names: mkdocstrings fills it with signatures and docstrings."""
    parts = ["# Python API\n\nEvery public name, with the module that you import it from.\n"]
    for room, title in ROOMS.items():
        module = importlib.import_module(room)
        parts.append(f"## {title}\n\n`from {room} import …`\n")
        parts += [_entry(module, name) for name in sorted(module.__all__)]
    return "\n".join(parts)


def _entry(module: Any, name: str) -> str:
    found = getattr(module, name)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return f"### {name}\n\n`{module.__name__}.{name}`\n"
    return f"::: {found.__module__}.{found.__qualname__}\n    options: {{heading_level: 3}}\n"


# --- the commands


def commands() -> str:
    """Give the page of the commands, as their parser describes them."""
    definition = importlib.import_module("airflow_tx.operations.cli.definition")
    parts = [
        f"# Commands\n\nEach command is `airflow tx …`. It prints this text, too: `airflow tx list --help`.\n{EXIT}"
    ]
    for path, command in _actions(definition.TX_COMMANDS):
        parts.append(f"## airflow tx {path}\n\n{command.help}.\n")
        if command.description:
            parts.append(f"{command.description}\n")
        parts.append("| argument | meaning |\n|---|---|")
        parts += filter(None, map(_argument, command.args))
        parts.append(f"\n```\n{inspect.cleandoc(str(command.epilog).partition(':')[2])}\n```\n")
    return "\n".join(parts)


def _actions(found: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for each in found:
        if hasattr(each, "subcommands"):
            yield from _actions(each.subcommands, f"{before}{each.name} ")
        else:
            yield f"{before}{each.name}", each


def _argument(argument: Any) -> str:
    """Give the line of an argument; "": the help hides it."""
    parser = argparse.ArgumentParser(add_help=False)
    argument.add_to_parser(parser)
    action = parser._actions[-1]
    if action.help == argparse.SUPPRESS:
        return ""
    names = (
        ", ".join(f"`{name}`" for name in action.option_strings) or f"`{str(action.metavar or action.dest).upper()}`"
    )
    text = (action.help or "").replace("|", "\\|").replace("\n", " ")
    return f"| {names} | {' '.join(text.split())} |"
