"""The page of all errors: each class with its cause, its message and its remedies, read from the source files."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

CODE = Path(__file__).parents[2] / "airflow_tx"
ROOT = "TxError"
HEAD = """# Errors

Each error says in one line what is wrong, where, and what to do. `{…}` or `…` stands for a value.
The order is alphabetical. Search this page for a word of your message.
"""
ABSTRACT = {"TxError", "Refused", "StoreError", "MessageError"}
"""Classes that only their subclasses use."""
REMEDIES = {
    "AcceptanceRefused": "Remove the cause, then repeat the command.",
    "AheadOfOrder": "You need to do nothing: the run waits for the interval before it.",
    "AlreadyFinal": "A committed transaction: airflow tx restate. A skipped one: airflow tx readmit.",
    "ApplicationFailed": "Read the reason and the log of the application. Correct it, then clear the task.",
    "CommitNotStored": "You need to do nothing: the watcher delivers the events again.",
    "DagLeft": "Correct the DAG file, or wait: it is read again once it has changed, or after two minutes.",
    "FailedBatch": "Your task raised it. Correct the batch, then replay the transaction, or skip it.",
    "FailedThere": "Correct the DAG file, or what it imports. Then reload the page.",
    "GoesByRuns": "You need to do nothing: the transactions are runs. To use the lane, change what the reason names.",
    "RollForwardRefused": "Do what the line says: restore a newer backup, or repair the ledger first.",
    "StateBehind": "Do what the line says: airflow tx repair TOPOLOGY --roll-forward STATE, where the journal has what "
    "the state lacks. Else restore a newer backup, or: airflow tx repair TOPOLOGY --state-lost STATE",
    "KafkaRefused": "Correct login and rights of the connection. Then clear the task.",
    "KafkaUnreachable": "Start a broker, or correct the addresses of the connection. Then clear the task.",
    "LagUnknown": "Remove the cause. Transactions do not depend on the lag.",
    "LedgerAway": "Start ZooKeeper, or correct its connection. The page continues by itself.",
    "NoConnection": "Do what the line says, then clear the task.",
    "NotAnsweredThere": "Reload the page. If it comes back, read the log of the api-server.",
    "NotComparableNow": "Pause the DAGs, and repeat the command.",
    "NotInEffect": "Try the skip again, or replay the transaction.",
    "OutcomeUnknown": "You need to do nothing: the next step reads what was written.",
    "PartitionUnavailable": "Start the server of the partition. An opaque source works without it until then.",
    "RefusedThere": "Do what the line says.",
    "RequirementFailed": "You need to do nothing: the step is decided again.",
    "RunNotStarted": "Remove the cause, then repeat the command, or clear the run in Airflow.",
    "SeveralRefused": "Do what each line says.",
    "LagElsewhere": "You need to do nothing: the DAG of the topology has another one now.",
    "SourceElsewhere": "Do what the line says.",
    "StoreDeclined": "Do what the line says, then clear the task.",
    "TurnNotReached": "You need to do nothing: the coordinator starts a run, which waits.",
    "UnclearRequest": "Correct the command, or reload the page.",
}
"""What to do, for classes whose message and raises say no fixed remedy."""
HELPERS = {
    ("sources", "refused"): ("SourceError", ("problem", "remedy")),
    ("sources", "rows_refused"): ("RowsRefused", ("problem", "remedy")),
    ("sources", "unusable"): ("ConfigError", ("option", "value", "remedy")),
    ("", "refuse"): ("StagingError", ("where", "output", "problem", "remedy")),
}
"""Functions that make an error of their arguments, by the folder of their callers."""


@dataclass
class Error:
    """One class: what it means, its message, and each pair of problem and remedy that the code raises."""

    name: str
    cause: str
    message: str
    raised: list[tuple[str, str]] = field(default_factory=list)

    @property
    def remedies(self) -> list[tuple[str, str]]:
        """Pairs of cause and remedy."""
        if "{remedy}" in self.message and self.raised:
            return sorted(set(self.raised))
        if self.name in REMEDIES:
            return [("", REMEDIES[self.name])]
        _, _, fixed = self.message.partition(". ")
        return [("", fixed)] if fixed and "{remedy}" not in fixed else []


def errors() -> str:
    """Give the page."""
    return "\n".join([HEAD, *map(_entry, sorted(found().values(), key=lambda each: each.name))])


def _entry(error: Error) -> str:
    parts = [f"## {error.name}\n\n{error.cause}\n"]
    if error.message and error.name not in ABSTRACT:
        parts.append(f"```text\n{error.message}\n```\n")
    pairs = error.remedies
    if pairs and pairs[0][0]:
        parts.append("| if | do |\n|---|---|")
        parts += [f"| {_cell(problem)} | {_cell(remedy)} |" for problem, remedy in pairs]
        parts.append("")
    elif pairs:
        parts.append(f"**Remedy:** {pairs[0][1]}\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


@cache
def found() -> dict[str, Error]:
    """Read all classes of errors, and what the code raises them with."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(CODE.rglob("*.py"))}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [getattr(base, "id", "") for base in node.bases] for node in classes}
    named = {node.name: node for node in classes if _is_error(node.name, bases)}
    all_found = {name: Error(name, _cause(node), _message(name, named, bases)) for name, node in named.items()}
    for path, tree in trees.items():
        for name, problem, remedy in _raises(tree, path.relative_to(CODE).parts[0]):
            if name in all_found:
                all_found[name].raised.append((problem, remedy))
    return all_found


def _is_error(name: str, bases: dict[str, list[str]]) -> bool:
    return name == ROOT or any(_is_error(base, bases) for base in bases.get(name, []) if base != name)


def _cause(node: ast.ClassDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "").partition("\n\n:")[0]


def _message(name: str, named: dict[str, ast.ClassDef], bases: dict[str, list[str]]) -> str:
    """Give the template of a class, or of its base."""
    for node in named[name].body:
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        if getattr(target, "id", "") == "template":
            problem, *advice = _parts(node.value, has_remedy=name not in REMEDIES)  # type: ignore[attr-defined]
            return " ".join(f"{_text(problem, {})} {''.join(_text(each, {}) for each in advice)}".split())
    inherited = [base for base in bases[name] if base in named]
    return _message(inherited[0], named, bases) if inherited else ""


def _raises(tree: ast.Module, folder: str) -> Iterator[tuple[str, str, str]]:
    """Give each error that is made with a problem and a remedy: its class, and both texts."""
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    constants = _assigned(tree.body)
    for scope in scopes:
        texts = constants | _assigned(list(ast.walk(scope)))
        for node in ast.walk(scope):
            if isinstance(node, ast.Call):
                yield from _made(node, texts, folder)


def _assigned(nodes: list[ast.AST] | list[ast.stmt]) -> dict[str, ast.expr]:
    return {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _made(call: ast.Call, texts: dict[str, ast.expr], folder: str) -> Iterator[tuple[str, str, str]]:
    function = getattr(call.func, "id", getattr(call.func, "attr", ""))
    name, names = HELPERS.get((folder, function), HELPERS.get(("", function), (function, ())))
    given = dict(zip(names, call.args, strict=False)) | {str(each.arg): each.value for each in call.keywords}
    if "remedy" in given:
        problem = _text(given.get("problem") or given.get("option"), texts)
        remedy = _text(given["remedy"], texts)
        if remedy and problem and remedy.strip("… .") and problem.strip("… ."):
            yield name, problem, remedy


def _parts(template: ast.expr, *, has_remedy: bool) -> list[ast.expr]:
    """Give the parts of a template: the field `remedy` follows a problem that stands alone."""
    if isinstance(template, ast.Tuple):
        return template.elts
    return [template, *([ast.Constant("{remedy}")] if has_remedy else [])]


def _text(node: ast.expr | None, texts: dict[str, ast.expr], depth: int = 3) -> str:
    """Give a literal text, with … in place of values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left, texts, depth) + _text(node.right, texts, depth)
    if isinstance(node, ast.Name) and node.id in texts and depth:
        return _text(texts[node.id], texts, depth - 1)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Remedy.of":
        return "".join(_text(each, texts, depth) for each in node.args)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Command.of":
        return " ".join(["airflow tx", *(_text(each, texts, depth) for each in node.args)])
    return "…" if node is not None else ""
