"""A promise whose test does not run is named."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests import claims
from tests.claims import claimed, judge
from tests.costs import Costs


def test_only_tests_that_a_row_of_a_table_in_the_docs_names_must_have_run() -> None:
    assert claimed(["| kill | counted once | `test_a`, `test_b` |\n\nSee `test_c`."]) == {"test_a", "test_b"}


def test_a_test_that_the_docs_name_passes_the_check_if_it_ran_in_any_part_of_the_run() -> None:
    parts = [Costs(ran=["tests/x.py::test_a[1]"]), Costs(ran=["tests/y.py::TestY::test_b"])]
    assert judge({"test_a", "test_b"}, parts) == ([], [])


def test_a_test_that_the_docs_name_must_have_run_unless_it_was_left_out_for_its_length() -> None:
    parts = [Costs(seconds={"tests/x.py::test_skipped": 0.1}, later=["tests/z.py::test_long"])]
    assert judge({"test_skipped", "test_long", "test_gone"}, parts) == (["test_gone", "test_skipped"], ["test_long"])


def test_a_long_test_that_the_docs_name_is_missing_if_another_run_skipped_it() -> None:
    quick = Costs(later=["tests/z.py::test_long"])
    rest = Costs(seconds={"tests/z.py::test_long": 0.1})
    assert judge({"test_long"}, [quick, rest]) == (["test_long"], [])


def test_a_test_that_the_docs_name_must_have_run_with_every_parameter() -> None:
    began = Costs(
        seconds={"x.py::test_a[sqlite]": 3.0, "x.py::test_a[lake]": 0.1, "x.py::test_a[a::b[0]]": 0.1},
        ran=["x.py::test_a[sqlite]"],
        later=["x.py::test_a[mysql]"],
        left_out=["x.py::test_a[spark]", "x.py::test_ab"],
    )
    assert judge({"test_a"}, [began]) == (["test_a[a::b[0]]", "test_a[lake]", "test_a[spark]"], ["test_a[mysql]"])
    others = Costs(ran=["x.py::test_a[lake]", "x.py::test_a[spark]", "x.py::test_a[mysql]", "x.py::test_a[a::b[0]]"])
    assert judge({"test_a"}, [began, others]) == ([], [])


def test_a_test_of_the_same_name_in_another_class_counts_as_another_parameter() -> None:
    parts = [Costs(seconds={"x.py::TestOne::test_a": 1.0, "x.py::TestTwo::test_a": 0.1}, ran=["x.py::TestOne::test_a"])]
    assert judge({"test_a"}, parts) == (["test_a"], [])


def test_the_docs_may_name_a_test_with_one_parameter() -> None:
    assert claimed(["| kill | counted once | `test_a[lake]` |"]) == {"test_a[lake]"}
    parts = [Costs(seconds={"x.py::test_a[lake]": 1.0, "x.py::test_a[mysql]": 0.1}, ran=["x.py::test_a[lake]"])]
    assert judge({"test_a[lake]"}, parts) == ([], [])
    assert judge({"test_a[mysql]", "test_a[gone]"}, parts) == (["test_a[gone]", "test_a[mysql]"], [])


def checked(folder: Path, monkeypatch: pytest.MonkeyPatch, **runs: Costs) -> str | None:
    """Return with which words the check of these runs fails, one claim `test_cut_off` being made."""
    page = folder / "page.md"
    page.write_text("| a host is cut off | nothing is lost | `test_cut_off` |")
    monkeypatch.setattr(claims, "TABLES", (page,))
    for name, costs in runs.items():
        (folder / name).mkdir()
        (folder / name / "others.json").write_text(json.dumps(asdict(costs)))
    monkeypatch.setattr("sys.argv", ["claims", *(str(folder / name) for name in ("quick", "hosts", "rest"))])
    try:
        claims.main()
    except SystemExit as end:
        return str(end.code)
    return None


def test_a_test_that_the_docs_name_may_run_in_any_run_and_other_runs_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = Costs(ran=["tests/cluster/x.py::test_cut_off"])
    assert checked(tmp_path, monkeypatch, quick=Costs(), hosts=hosts) is None
    assert f"no record of a run: {tmp_path / 'rest'}" in capsys.readouterr().out


def test_the_check_fails_if_a_test_that_the_docs_name_belongs_to_a_missing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked(tmp_path, monkeypatch, quick=Costs(ran=["x.py::test_a"])) == (
        "A promise names a test that did not run: test_cut_off"
    )


def test_a_parameter_that_no_run_had_time_for_is_listed_and_its_test_does_not_count_as_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = Costs(ran=["x.py::test_cut_off[one]"], later=["x.py::test_cut_off[two]"])
    assert checked(tmp_path, monkeypatch, quick=quick) is None
    told = capsys.readouterr().out
    assert "not run for lack of time (script/test --rest SECONDS, or --hosts): test_cut_off[two]\n" in told
    assert "0 of 1 tests that promises name have run" in told


def test_the_check_fails_if_the_records_of_all_runs_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "run script/test without arguments" in str(checked(tmp_path, monkeypatch))
