"""Each section of the protocol names the tests that check it, in tests/RULES.md. The site has a page of this list."""

from __future__ import annotations

import re
from typing import Any

from tests.imports.doc_pages import ROOT, hook

RULES: Any = hook("rule_pages")
PROTOCOL = RULES.sections(ROOT / "docs/protocol.md")
TESTED = RULES.sections(ROOT / "tests/RULES.md")


def test_every_test_that_is_listed_for_a_protocol_rule_exists() -> None:
    names = {name for text in TESTED.values() for name in RULES.named(text)}
    assert len(names) > 150
    assert sorted(names - set(RULES.files())) == []


def test_the_tested_rules_follow_the_order_of_the_protocol_sections() -> None:
    assert [heading for heading in PROTOCOL if heading in TESTED] == list(TESTED)


def test_each_section_of_the_protocol_has_a_test() -> None:
    """The test of a section may be in one of its parts."""
    tested = _by_number(TESTED)
    assert [number for number in _by_number(PROTOCOL) if not RULES.named(tested.get(number, ""))] == []


def _by_number(sections: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    section = ""
    for heading, text in sections.items():
        number = re.match(r"## (\d+)\.", heading)
        section = number[1] if number else section
        found[section] = found.get(section, "") + text
    return found


def test_the_rules_page_names_the_file_of_each_test() -> None:
    page = RULES.rules()
    assert "`test_a_replay_between_two_joined_steps_is_noticed` in `tests/" in page
    assert " in \n" not in page
    assert "](../protocol.md)" in page
