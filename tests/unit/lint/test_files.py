"""Files that cannot be read are named, and the others are still checked."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest

from airflow_tx.base.errors import ConfigError
from airflow_tx.lint.report import findings_of
from airflow_tx.operations.cli.lint import lint
from tests.unit.lint.linted import codes_of, processing

PLANTED = processing("return uuid.uuid4()", "import uuid")


def test_the_linter_refuses_a_missing_file_and_a_folder_without_python_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        findings_of(tmp_path / "absent.py")
    with pytest.raises(ConfigError, match="no Python file"):
        findings_of(tmp_path)


UNREAD = {
    "syntax": (b"def (", "This line is not valid Python"),
    "bytes": (b"name = '\xff\xfe'", "not UTF-8"),
    "null": (b"a = 1\x00", "null bytes"),
    "deep": (b"a = " + b"(" * 5000 + b")" * 5000, "This line is not valid Python|nested too deeply"),
    "deeper": (b"a = " + b"-" * 100_000 + b"1", "nested too deeply|This line is not valid Python"),
    "noqa": (b"a = 1  # noqa: TX999", "TX999, which is no rule"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_the_linter_names_a_file_that_it_cannot_read_and_checks_the_other_files(case: str, tmp_path: Path) -> None:
    code, why = UNREAD[case]
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "broken.py").write_bytes(code)
    report = findings_of(tmp_path)
    assert [each.code for each in report.findings] == ["TX105"]
    (line,) = report.unread
    assert "broken.py" in line
    assert re.search(why, line)


def test_the_linter_reads_a_large_file_and_refuses_a_huge_one(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("def f(a):\n    return a.b(1)\n" * 10_000 + PLANTED)
    (tmp_path / "huge.py").write_text("# " + "x" * 5_000_000)
    report = findings_of(tmp_path)
    assert [each.code for each in report.findings] == ["TX105"]
    assert "5,000,000 bytes" in report.unread[0]


def test_the_linter_accepts_a_file_with_a_declared_encoding(tmp_path: Path) -> None:
    file = tmp_path / "latin.py"
    file.write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\n")
    assert findings_of(file).unread == []


def test_the_linter_ignores_links_and_hidden_folders_and_virtual_environments(tmp_path: Path) -> None:
    for name in (".git", "__pycache__", "venv"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "planted.py").write_text(PLANTED)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "clean.py").write_text("a = 1")
    report = findings_of(tmp_path)
    assert (report.findings, report.unread, report.files) == ([], [], 1)
    (tmp_path / "circle.py").symlink_to(tmp_path / "circle.py")
    assert "circle.py" in findings_of(tmp_path).unread[0]


def test_the_linter_prints_a_summary_for_a_folder_without_dags(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1")
    assert findings_of(tmp_path).summary == (
        "Findings: 0. Files: 1, transactions: 0, Spark applications: 0, DAGs without a transaction: 0."
    )


def test_the_linter_reads_both_definitions_of_a_class_that_is_defined_twice(tmp_path: Path) -> None:
    above = "".join(f"class Job:\n    def {name}(self):\n        pass\n" for name in ("first", "second"))
    assert codes_of(tmp_path, processing("return Job().second()", above)) == []


def test_names_that_refer_to_each_other_cause_no_endless_loop_in_the_linter(tmp_path: Path) -> None:
    above = "a = b\nb = a\nc = c.d().e\nclass A(B): pass\nclass B(A): pass\nfrom planted import z\nz = z"
    assert codes_of(tmp_path, processing("a()\nb.run(a)\nc()\nA().run()\nreturn z()", above)) == []


def test_a_noqa_comment_inside_a_string_suppresses_no_finding(tmp_path: Path) -> None:
    assert codes_of(tmp_path, processing("return '# noqa: TX105', uuid.uuid4()", "import uuid")) == ["TX105"]
    assert codes_of(tmp_path, processing("return uuid.uuid4()  # noqa: E501, TX105", "import uuid")) == []
    call = "hook.run(\n    'DELETE FROM t'\n)  # noqa: TX101"
    assert codes_of(tmp_path, processing(call)) == []


@pytest.mark.parametrize(("code", "status"), [(PLANTED, 1), ("a = 1", 0), ("def (", 2)])
def test_the_exit_code_distinguishes_findings_from_unusable_files(
    code: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text(code)
    given = Namespace(path=str(tmp_path), format="text", verbose=False)
    ended = 0
    try:
        lint(given)
    except SystemExit as error:
        ended = int(error.code or 0)
    assert ended == status
    shown = capsys.readouterr()
    assert "Findings:" in shown.out
    assert ("cannot be used" in shown.err) == (status == 2)


@pytest.mark.parametrize("made", ["build(name)", "globals().update({name: other.build_dag(name)})"])
def test_the_report_names_a_file_whose_dags_are_created_in_a_loop_by_code_of_another_file(
    tmp_path: Path, made: str
) -> None:
    file = tmp_path / "many.py"
    file.write_text(f"from other import build\nimport other\nfor name in ('a', 'b'):\n    globals()[name] = {made}\n")
    report = findings_of(file)
    assert report.unseen == [f"{file}: a loop creates DAGs with code of another file, so these DAGs were not checked"]
    file.write_text("for name in ('a', 'b'):\n    print(name)\n")
    assert findings_of(file).unseen == []
