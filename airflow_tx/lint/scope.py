"""The scopes of a file. They resolve a name at any place to its function, class, import or value."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airflow_tx.base.errors import ConfigError

# --- scope --------------------------------------------------------------------------------------------------------


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode = ast.Module | ast.ClassDef | FunctionNode
_DEPTH = 8
"""Maximum number of assignments to follow for a name, since names may refer to each other in a circle."""


@dataclass
class Scope:
    """A module, a class or a function, with the names that it defines.

    :param node: the syntax tree of the scope.
    :param parent: the enclosing scope; None for a module.
    :param imports: the full name of each import, by its name in this scope.
    :param assigned: the values assigned to each name, in the order of the file. The value is None if the file does not
        reveal it.
    :param inner: the last function or class with each name.
    :param below: every function and class directly inside, by the id of its node.
    """

    node: ScopeNode
    parent: Scope | None
    imports: dict[str, str] = field(default_factory=dict)
    assigned: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    inner: dict[str, Scope] = field(default_factory=dict)
    below: dict[int, Scope] = field(default_factory=dict)

    @property
    def module(self) -> Scope:
        return self if self.parent is None else self.parent.module

    @property
    def owner(self) -> Scope | None:
        """Return the class of a method, or of a function inside a method. Return None for other scopes."""
        if self.parent is None or isinstance(self.node, ast.ClassDef):
            return None
        if isinstance(self.parent.node, ast.ClassDef):
            return self.parent
        return self.parent.owner

    def home(self, name: str) -> Scope | None:
        """Return the innermost scope that defines a name, starting with this scope."""
        scope: Scope | None = self
        while scope is not None:
            seen = scope is self or not isinstance(scope.node, ast.ClassDef)
            if seen and (name in scope.imports or name in scope.assigned or name in scope.inner):
                return scope
            scope = scope.parent
        return None

    def values(self, node: ast.expr) -> list[ast.expr]:
        """Return the expressions that are assigned to a name, or to an attribute of `self`."""
        if isinstance(node, ast.Name):
            home = self.home(node.id)
            found = [] if home is None else home.assigned.get(node.id, [])
        elif self.owner is not None:
            found = self.owner.assigned.get(own_attribute(node), [])
        else:
            return []
        return [each for each in found if each is not None]

    def name_of(self, node: ast.expr, depth: int = _DEPTH) -> str:
        """Return the full dotted name of an expression, after imports and assignments are resolved.

        If the file does not reveal the first part of the name, the name begins with ".".
        """
        if depth == 0:
            return ""
        if isinstance(node, ast.Call):
            called = self.name_of(node.func, depth)
            return f"{called}()" if called else ""
        if isinstance(node, ast.Name):
            return self._name_of_name(node, depth)
        if isinstance(node, ast.Attribute):
            if values := self.values(node):
                return self.name_of(values[-1], depth - 1)
            return f"{self.name_of(node.value, depth)}.{node.attr}"
        return ""

    def _name_of_name(self, node: ast.Name, depth: int) -> str:
        home = self.home(node.id)
        if home is None:
            return node.id
        if node.id in home.imports:
            return home.imports[node.id]
        for value in reversed(self.values(node)):
            if not mentions(value, node.id):
                return home.name_of(value, depth - 1)
        return node.id if node.id in home.inner else ""

    def constant(self, node: ast.expr | None, depth: int = _DEPTH) -> object:
        """Return the value of a constant, or of a name with a constant value. Return None for other expressions."""
        if isinstance(node, ast.Constant):
            return node.value
        if node is None or depth == 0:
            return None
        values = self.values(node)
        return self.constant(values[-1], depth - 1) if values else None

    def argument(self, call: ast.Call, name: str) -> ast.expr | None:
        """Return a keyword argument of a call, even from a dict that is passed with `**`."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
            for value in self._dicts(keyword):
                for key, each in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return each
        return None

    def _dicts(self, keyword: ast.keyword) -> list[ast.Dict]:
        if keyword.arg is not None:
            return []
        found = [keyword.value, *self.values(keyword.value)]
        return [each for each in found if isinstance(each, ast.Dict)]


def scope_of(tree: ast.Module) -> Scope:
    """Create the scopes of a module from its syntax tree."""
    scope = Scope(tree, None)
    _fill(scope)
    return scope


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node, except those inside functions and classes."""
    left = list(_children(node))
    while left:
        each = left.pop()
        yield each
        if not isinstance(each, FunctionNode | ast.ClassDef):
            left.extend(ast.iter_child_nodes(each))


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def own_attribute(node: ast.expr) -> str:
    """Return `self.name` for an attribute of `self` or of the class. Return "" for other expressions."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return ""
    return f"self.{node.attr}" if node.value.id in ("self", "cls") else ""


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, FunctionNode):
        yield from node.body
    else:
        yield from ast.iter_child_nodes(node)


def _fill(scope: Scope) -> None:
    if isinstance(scope.node, FunctionNode):
        for argument in _arguments(scope.node.args):
            scope.assigned.setdefault(argument.arg, []).append(None)
    nodes = sorted(own_nodes(scope.node), key=lambda each: getattr(each, "lineno", 0))
    for node in nodes:
        if isinstance(node, FunctionNode | ast.ClassDef):
            scope.inner[node.name] = scope.below[id(node)] = inner = Scope(node, scope)
            _fill(inner)
        else:
            _note(scope, node)


def _note(scope: Scope, node: ast.AST) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        scope.imports.update(_imported(node))
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            _assign(scope, target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        _assign(scope, node.target, node.value)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _assign(scope, node.optional_vars, node.context_expr)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        _assign(scope, node.target, None)


def _assign(scope: Scope, target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, ast.Name):
        scope.assigned.setdefault(target.id, []).append(value)
    elif own_attribute(target) and scope.owner is not None:
        scope.owner.assigned.setdefault(own_attribute(target), []).append(value)
    elif isinstance(target, ast.Tuple | ast.List):
        values = _parts(value, len(target.elts))
        for each, part in zip(target.elts, values, strict=True):
            _assign(scope, each, part)


def _parts(value: ast.expr | None, count: int) -> list[ast.expr | None]:
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
        return list(value.elts)
    return [None] * count


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            before = module if module.endswith(".") else f"{module}."
            yield alias.asname or alias.name, before + alias.name
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top


def _arguments(found: ast.arguments) -> list[ast.arg]:
    starred = [each for each in (found.vararg, found.kwarg) if each is not None]
    return [*found.posonlyargs, *found.args, *found.kwonlyargs, *starred]


# --- project ------------------------------------------------------------------------------------------------------
# The files that belong together: a DAG file, and the modules from which it imports functions.


_LARGEST = 5_000_000
_FOREIGN = ("airflow", "airflow_tx", "pyspark", "pandas", "numpy")
_CALLBACK = "on_"
_NOQA = re.compile(r"#\s*noqa:[\s\w,]*?\b(TX\w+(?:[\s,]+TX\w+)*)", re.I)


class LintedProject:
    """Parses each file once, and finds definitions in other files.

    :param root: a folder to search for modules, in addition to the importing file's folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._scopes: dict[Path, Scope] = {}
        self._paths: dict[int, Path] = {}
        self.ignored: dict[Path, dict[int, list[str]]] = {}

    def read(self, path: Path) -> Scope:
        """Return the scope of a file, that is, of its module.

        :raises ConfigError: the file cannot be read as Python.
        """
        if path not in self._scopes:
            text = _text_of(path)
            self._scopes[path] = scope = scope_of(_tree_of(path, text))
            self.ignored[path] = ignored_codes(text)
            self._paths[id(scope)] = path
        return self._scopes[path]

    def path_of(self, scope: Scope) -> Path:
        return self._paths[id(scope.module)]

    def reached(self, scope: Scope, roots: list[ast.AST]) -> list[Scope]:
        """Return the functions that the code below `roots` uses, directly or through other functions."""
        found: dict[int, Scope] = {}
        left = [each for root in roots for each in self._referred(scope, own_nodes(root))]
        while left:
            each = left.pop()
            if id(each.node) in found:
                continue
            found[id(each.node)] = each
            left.extend(self._referred(each, own_nodes(each.node)))
        return list(found.values())

    def _referred(self, scope: Scope, nodes: Iterator[ast.AST]) -> Iterator[Scope]:
        everything = list(nodes)
        skipped = {id(each) for node in everything for each in _of_callbacks(node)}
        for node in everything:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                if id(node) not in skipped:
                    yield from self.functions_of(scope, node)

    def functions_of(self, scope: Scope, node: ast.expr) -> Iterator[Scope]:
        """Yield the function that an expression refers to. For a class, yield `execute`, `__init__` and `__call__`."""
        found = self.definition(scope, node)
        if found is None:
            return
        if isinstance(found.node, FunctionNode):
            yield found
        elif isinstance(found.node, ast.ClassDef):
            for name in ("execute", "__init__", "__call__"):
                if method := self._method(found, name):
                    yield method

    def definition(self, scope: Scope, node: ast.expr, depth: int = 8) -> Scope | None:
        """Return the function or class that an expression refers to, in this file or in an imported module."""
        if depth == 0:
            return None
        if isinstance(node, ast.Name):
            return self._named(scope, node, depth)
        if not isinstance(node, ast.Attribute):
            return None
        if own_attribute(node):
            return self._method(scope.owner, node.attr)
        for value in (node.value, *scope.values(node.value)):
            called = value.func if isinstance(value, ast.Call) else value
            owner = self.definition(scope, called, depth - 1)
            if owner is not None and isinstance(owner.node, ast.ClassDef):
                return self._method(owner, node.attr)
        full = _imported_name(scope, node)
        return self._elsewhere(scope, full) if full else None

    def _named(self, scope: Scope, node: ast.Name, depth: int) -> Scope | None:
        home = scope.home(node.id)
        if home is None:
            return None
        if node.id in home.inner:
            return home.inner[node.id]
        if node.id in home.imports:
            return self._elsewhere(home, home.imports[node.id])
        for value in home.values(node):
            if isinstance(value, ast.Name | ast.Attribute):
                return self.definition(home, value, depth - 1)
        return None

    def _method(self, owner: Scope | None, name: str, depth: int = 8) -> Scope | None:
        """Return a method of a class or of its base classes."""
        if owner is None or depth == 0:
            return None
        if name in owner.inner:
            return owner.inner[name]
        assert isinstance(owner.node, ast.ClassDef)
        for base in owner.node.bases:
            above = self.definition(owner.parent or owner, base)
            if above is not None and isinstance(above.node, ast.ClassDef) and above is not owner:
                if method := self._method(above, name, depth - 1):
                    return method
        return None

    def _elsewhere(self, scope: Scope, full: str, depth: int = 8) -> Scope | None:
        """Return a function or class from a module that the file imports, if the module is in a searched folder."""
        names = full.lstrip(".").split(".")
        if names[0] in _FOREIGN or len(names) < 2 or depth == 0:
            return None
        for folder in self._folders(scope, full):
            for end in range(len(names) - 1, 0, -1):
                module = self._module(folder.joinpath(*names[:end]))
                if module is not None:
                    return self._inside(module, names[end:], depth)
        return None

    def _inside(self, scope: Scope, names: list[str], depth: int) -> Scope | None:
        for name in names:
            if name not in scope.inner:
                full = ".".join([scope.imports.get(name, ""), *names[1:]])
                return self._elsewhere(scope, full, depth - 1) if name in scope.imports else None
            scope = scope.inner[name]
        return scope

    def application_of(self, scope: Scope, call: ast.Call) -> Scope | None:
        """Return the module of the Spark application that an operator submits, if its file can be found."""
        given = scope.argument(call, "application")
        own = self.path_of(scope).parent
        for value in [] if given is None else [given, *scope.values(given)]:
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and str(node.value).endswith(".py"):
                    for folder in (own, self._root, self._root.parent):
                        if module := self._read(folder / str(node.value)):
                            return module
        return None

    def _folders(self, scope: Scope, full: str) -> list[Path]:
        own = self.path_of(scope).parent
        dots = len(full) - len(full.lstrip("."))
        if dots:
            return [[own, *own.parents][min(dots - 1, len(own.parents))]]
        return [own] if own == self._root else [own, self._root]

    def _module(self, path: Path) -> Scope | None:
        """Return the scope of a module. Return None if its file cannot be read. The import is then ignored."""
        return self._read(path.with_name(f"{path.name}.py")) or self._read(path / "__init__.py")

    def _read(self, file: Path) -> Scope | None:
        try:
            return self.read(file) if file.is_file() else None
        except (ConfigError, OSError):
            return None


def _imported_name(scope: Scope, node: ast.Attribute) -> str:
    names = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name):
        return ""
    home = scope.home(value.id)
    if home is None or value.id not in home.imports:
        return ""
    return ".".join([home.imports[value.id], *reversed(names)])


def _of_callbacks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in callbacks, such as `on_failure_callback`, which do not run for each batch."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if (keyword.arg or "").startswith(_CALLBACK):
                yield from ast.walk(keyword.value)


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise refused(path, f"The file has more than {_LARGEST:,} bytes: name a DAG file")
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise refused(path, f"The file is not UTF-8: {error}. Save it as UTF-8") from error
    except OSError as error:
        raise refused(path, f"The file cannot be read: {error.strerror}") from error


def _tree_of(path: Path, text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, str(path))
    except (RecursionError, MemoryError) as error:
        raise refused(path, "The code is nested too deeply for Python to parse it") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        remedy = f"This line is not valid Python: {error}. Correct the file"
        raise refused(f"{path}:{line}", remedy) from error


def ignored_codes(text: str) -> dict[int, list[str]]:
    """Return, by line, the codes in comments such as `# noqa: TX101`. Strings that look like comments are ignored."""
    if not _NOQA.search(text):
        return {}
    found: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _NOQA.search(token.string) if token.type == tokenize.COMMENT else None
        if match:
            found[token.start[0]] = re.split(r"[\s,]+", match[1].upper())
    return found


def refused(value: object, remedy: str) -> ConfigError:
    return ConfigError(option="DAG_FILE|FOLDER", value=str(value), remedy=remedy)


# --- dags ---------------------------------------------------------------------------------------------------------
# The DAGs of a file: DAGs with a transaction, plain DAGs, and Spark applications.


_SPARK_APPLICATION = "batch_app"


@dataclass(frozen=True)
class TransactionBlock:
    """A `with Transaction(...)` block.

    :param scope: the scope in which the block is.
    :param call: the call of `Transaction`.
    :param body: the statement with the block.
    :param dag: the call that creates the DAG around the block; None if the file does not reveal the DAG.
    """

    scope: Scope
    call: ast.Call
    body: ast.With
    dag: ast.Call | None


@dataclass
class PlainDag:
    """A DAG without a transaction.

    :param roots: syntax trees of the code that creates the tasks.
    """

    scope: Scope
    call: ast.Call
    roots: list[ast.AST]

    @property
    def dag_id(self) -> str:
        """Return the dag_id, or the name of the decorated function. Return "" if the dag_id is not a constant."""
        given = self.scope.argument(self.call, "dag_id") or (
            self.call.args[0] if self.call.args else None
        )
        found = self.scope.constant(given)
        if isinstance(found, str):
            return found
        return self.roots[0].name if isinstance(self.roots[0], FunctionNode) else ""


@dataclass
class FileDags:
    """The DAGs and the Spark applications of a file."""

    blocks: list[TransactionBlock] = field(default_factory=list)
    plain: list[PlainDag] = field(default_factory=list)
    applications: list[Scope] = field(default_factory=list)


def dags_of(module: Scope) -> FileDags:
    """Return the DAGs and the Spark applications of a file."""
    found = FileDags()
    _walk(found, module, module.node, None)
    _module_dag(found, module)
    inside = {id(block.dag) for block in found.blocks}
    found.plain = [each for each in found.plain if id(each.call) not in inside]
    return found


def is_own(scope: Scope, node: ast.expr, name: str) -> bool:
    """Return whether an expression refers to the given public name of airflow_tx."""
    full = scope.name_of(node)
    return full.startswith("airflow_tx.") and full.rpartition(".")[2] == name


def is_phase(scope: Scope, node: ast.AST) -> bool:
    """Return whether a node is `with commit_phase():`."""
    if not isinstance(node, ast.With):
        return False
    return any(is_own(scope, call.func, "commit_phase") for call in _entered(scope, node))


def _walk(found: FileDags, scope: Scope, node: ast.AST, dag: ast.Call | None) -> None:
    left: list[tuple[Scope, ast.AST, ast.Call | None]] = [(scope, node, dag)]
    while left:
        scope, node, dag = left.pop()
        if isinstance(node, FunctionNode | ast.ClassDef) and node is not scope.node:
            scope = scope.below[id(node)]
            dag = _decorated(found, scope, node) or dag
        if isinstance(node, ast.With):
            dag = _opened(found, scope, node, dag)
        left.extend((scope, child, dag) for child in ast.iter_child_nodes(node))


def _decorated(found: FileDags, scope: Scope, node: FunctionNode | ast.ClassDef) -> ast.Call | None:
    """Collect an application or a `@dag` DAG. Return the call that creates the DAG."""
    outside = scope.parent or scope
    for each in node.decorator_list:
        call = each if isinstance(each, ast.Call) else ast.Call(each, [], [])
        name = outside.name_of(call.func)
        if is_own(outside, call.func, _SPARK_APPLICATION):
            found.applications.append(scope)
        if name in ("airflow.sdk.dag", "airflow.decorators.dag", "airflow.decorators.dag.dag"):
            ast.copy_location(call, each)
            found.plain.append(PlainDag(scope, call, [node]))
            return call
    return None


def _opened(found: FileDags, scope: Scope, node: ast.With, dag: ast.Call | None) -> ast.Call | None:
    for call in _entered(scope, node):
        if _is_dag(scope, call):
            dag = call
            found.plain.append(PlainDag(scope, call, list(node.body)))
        elif is_own(scope, call.func, "Transaction"):
            found.blocks.append(TransactionBlock(scope, call, node, dag))
    return dag


def _entered(scope: Scope, node: ast.With) -> Iterator[ast.Call]:
    """Yield the calls that create the objects of a `with`, directly or through a name."""
    for item in node.items:
        if isinstance(item.context_expr, ast.Call):
            yield item.context_expr
        elif values := scope.values(item.context_expr):
            if isinstance(values[-1], ast.Call):
                yield values[-1]


def _is_dag(scope: Scope, call: ast.Call) -> bool:
    return scope.name_of(call.func).rpartition(".")[2] == "DAG"


def _module_dag(found: FileDags, module: Scope) -> None:
    """Find the DAGs that a module assigns to names and that tasks refer to with `dag=`."""
    entered = {id(each.call) for each in found.plain}
    assert isinstance(module.node, ast.Module)
    for statement in module.node.body:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(call, ast.Call) and _is_dag(module, call) and id(call) not in entered:
            found.plain.append(PlainDag(module, call, list(module.node.body)))


# --- committed paths ----------------------------------------------------------------------------------------------
# Find the tasks of a transaction for which no committer waits.


_TASKS = (
    "airflow.sdk.task",
    "airflow.decorators.task",
    "airflow.sdk.task_group",
    "airflow.decorators.task_group",
)
_PREPARING = ("override", "partial")
_MAPPING = ("expand", "expand_kwargs")


def loose_tasks(project: LintedProject, block: TransactionBlock) -> list[ast.Call]:
    """Return the calls that create tasks for which no committer waits."""
    paths = _Paths(project, block.scope)
    paths.follow(block.body.body)
    return paths.loose()


def committers_in_phase(
    project: LintedProject, block: TransactionBlock
) -> Iterator[tuple[ast.Call, list[ast.Call]]]:
    """Yield each committer of a commit phase, with the other committers that do not run before it."""
    paths = _Paths(project, block.scope)
    paths.follow(block.body.body)
    return paths.committers()


class _Paths:
    """The tasks in a block, and the order in which they run.

    Every use of a task's name counts as a path between tasks. A superfluous path may hide a finding, but a missing path
    would cause a false finding.
    """

    def __init__(self, project: LintedProject, scope: Scope) -> None:
        self._project = project
        self._scope = scope
        self._tasks: dict[int, ast.Call] = {}
        self._before: dict[int, set[int]] = defaultdict(set)
        self._names: dict[str, set[int]] = defaultdict(set)
        self._ends: set[int] = set()
        self._in_phase: set[int] = set()

    def follow(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def loose(self) -> list[ast.Call]:
        reached = self._reached(self._ends)
        return [call for key, call in self._tasks.items() if reached and key not in reached]

    def committers(self) -> Iterator[tuple[ast.Call, list[ast.Call]]]:
        calls = {
            key: self._tasks[key]
            for key in self._in_phase
            if is_own(self._scope, self._tasks[key].func, "CommitOperator")
        }
        for key, call in calls.items():
            before = self._reached({key})
            yield call, [each for other, each in calls.items() if other not in before]

    def _reached(self, ends: set[int]) -> set[int]:
        """Return these tasks and all tasks before them."""
        reached: set[int] = set()
        left = list(ends)
        while left:
            each = left.pop()
            if each not in reached:
                reached.add(each)
                left.extend(self._before[each])
        return reached

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, FunctionNode | ast.ClassDef):
            return
        if isinstance(node, ast.With):
            self._with(node)
            return
        bodies = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            self._assign(
                node.targets if isinstance(node, ast.Assign) else [node.target], node.value
            )
        if isinstance(node, ast.For):
            self._assign([node.target], node.iter)
        for body in bodies:
            self.follow(body)

    def _with(self, node: ast.With) -> None:
        known = set(self._tasks)
        self.follow(node.body)
        inside = set(self._tasks) - known
        if is_phase(self._scope, node):
            self._ends |= inside
            self._in_phase |= inside
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name):
                self._names[item.optional_vars.id] |= inside

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        tasks = self._mentioned(value)
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name):
                    self._names[each.id] |= tasks

    def _expression(self, node: ast.expr) -> None:
        for call in calls_in(node):
            if self._is_task(call):
                self._tasks[id(call)] = call
                if is_own(self._scope, call.func, "CommitOperator"):
                    self._ends.add(id(call))
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                self._arguments(each)
            elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.RShift | ast.LShift):
                self._shift(each)

    def _arguments(self, call: ast.Call) -> None:
        given: set[int] = set()
        for argument in [*call.args, *(each.value for each in call.keywords)]:
            given |= self._mentioned(argument)
        if id(call) in self._tasks:
            self._before[id(call)] |= given | self._mentioned(call.func)
            return
        last = _attribute(call.func) or self._scope.name_of(call.func).rpartition(".")[2]
        if isinstance(call.func, ast.Attribute):
            owner = self._mentioned(call.func.value)
            if last == "set_upstream":
                self._edge(given, owner)
            elif last == "set_downstream":
                self._edge(owner, given)
            elif isinstance(call.func.value, ast.Name):
                self._names[call.func.value.id] |= given
        if last in ("chain", "chain_linear", "cross_downstream"):
            for left, right in zip(call.args, call.args[1:], strict=False):
                self._edge(self._mentioned(left), self._mentioned(right))

    def _shift(self, node: ast.BinOp) -> None:
        left, right = node.left, node.right
        if isinstance(left, ast.BinOp):
            left = left.right
        before, after = self._mentioned(left), self._mentioned(right)
        if isinstance(node.op, ast.LShift):
            self._edge(after, before)
        else:
            self._edge(before, after)

    def _edge(self, before: set[int], after: set[int]) -> None:
        for each in after:
            self._before[each] |= before - {each}

    def _mentioned(self, node: ast.expr) -> set[int]:
        found: set[int] = set()
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                found |= self._names.get(each.id, set())
            elif id(each) in self._tasks:
                found.add(id(each))
        return found

    def _is_task(self, call: ast.Call) -> bool:
        """Return whether a call creates a task: an operator with a task_id, or a decorated function."""
        if _attribute(call.func) in _PREPARING:
            return False
        function = call.func
        options = [call]
        if isinstance(function, ast.Attribute) and function.attr in _MAPPING:
            function = function.value
        while isinstance(function, ast.Call) and isinstance(function.func, ast.Attribute):
            options.append(function)
            function = function.func.value
        if any(self._scope.argument(each, "task_id") is not None for each in options):
            return True
        found = self._project.definition(self._scope, function)
        return found is not None and self._is_decorated(found)

    def _is_decorated(self, scope: Scope) -> bool:
        if not isinstance(scope.node, FunctionNode):
            return False
        outside = scope.parent or scope
        plain = [
            each.func if isinstance(each, ast.Call) else each for each in scope.node.decorator_list
        ]
        return any(outside.name_of(each).startswith(_TASKS) for each in plain)


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""
