"""Find the effects of a call: writes to databases and files, and requests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_tx.lint.scope import Scope, calls_in

# --- sql text -----------------------------------------------------------------------------------------------------
# The SQL text of a call, as far as the file reveals it, and its statements that write.


_DEPTH = 6
_LONGEST = 100_000
"""Maximum number of characters of SQL to read. A longer file is probably a dump."""
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)
_COPY_OUT = re.compile(r"^\s*COPY\b.*\bTO\s+(?!STDOUT\b|PROGRAM\b)['\"$?]", re.I | re.S)
_PLACE = re.compile(r"\{+[^{}]*\}+")
_STRING = re.compile(r"'(?:[^']|'')*'")
_TABLE = r"(?:IF\s+EXISTS\s+|ONLY\s+|TABLE\s+)*([\w.\"`\[\]$-]+)"
_INSERT = re.compile(
    rf"^(?:WITH\b.*?\b)?(INSERT(?:\s+(?:IGNORE|OR\s+\w+|INTO|OVERWRITE))*|REPLACE\s+INTO|COPY)\s+{_TABLE}",
    re.I | re.S,
)
_UPDATE = re.compile(
    rf"^(?:WITH\b.*?\b)?(UPDATE\s+{_TABLE}\s+.*?\bSET|MERGE\s+INTO)\b", re.I | re.S
)
_RESET = re.compile(
    r"^(?:DELETE\s+FROM|TRUNCATE|DROP\s+TABLE|CREATE\s+(?:OR\s+REPLACE\s+)?(?:\w+\s+){0,2}TABLE(?!\s+IF\b))"
    rf"\s+{_TABLE}",
    re.I,
)
_ONCE = re.compile(
    r"\bON\s+(CONFLICT|DUPLICATE)\b|\bIGNORE\b|\bOR\s+(IGNORE|REPLACE)\b|\bOVERWRITE\b|^REPLACE\b|\bNOT\s+EXISTS\b",
    re.I,
)
_NEW = re.compile(r"\b(EXCLUDED|s|src|source|new)\.\w+|\bVALUES\s*\(\s*\w+\s*\)", re.I)
_SET = re.compile(r"\b(?:SET|KEY\s+UPDATE)\b(.*)", re.I | re.S)
_SUM = re.compile(r"[\"`]?(\w+)[\"`]?\s*=\s*(?=[^=]*[-+*|])[^=]*\b\1\b", re.I)


@dataclass(frozen=True)
class SqlWrite:
    """An SQL statement that changes a table.

    :param table: name of the table, in lower case.
    :param adds: whether a second execution changes the table again.
    :param resets: whether the statement deletes rows, so that a later insert does not count twice.
    """

    table: str
    adds: bool
    resets: bool = False


def writes_of(text: str) -> list[SqlWrite]:
    """Return the statements in an SQL text that change a table."""
    shown = _PLACE.sub(lambda match: _named(match[0]), text[:_LONGEST])
    statements = _COMMENT.sub(" ", shown).split(";")
    found = [_write_of(_STRING.sub("''", each).strip()) for each in statements]
    return [each for each in found if each is not None]


def _write_of(text: str) -> SqlWrite | None:
    if match := _RESET.match(text):
        return SqlWrite(table_name(match[1]), False, True)
    if match := _INSERT.match(text):
        if match[1].upper() == "COPY" and not re.search(r"\bFROM\b", text, re.I):
            return None
        return SqlWrite(table_name(match[2]), not _ONCE.search(text) or _sums(text))
    if match := _UPDATE.match(text):
        return SqlWrite(table_name(match[2] or "merged"), _sums(text))
    return None


def _sums(text: str) -> bool:
    match = _SET.search(text)
    return match is not None and _SUM.search(_NEW.sub("0", match[1])) is not None


def table_name(table: str) -> str:
    return re.sub(r"[\"`\[\]]", "", table).lower()


def texts_of(
    scope: Scope, node: ast.expr | None, folder: Path, depth: int = _DEPTH
) -> Iterator[str]:
    """Yield the possible texts of an expression. A placeholder replaces each part that the file does not reveal."""
    if node is None or depth == 0:
        return
    if isinstance(node, ast.Constant):
        yield from _text_or_file(node.value, folder)
    elif isinstance(node, ast.JoinedStr):
        parts = (
            each.value if isinstance(each, ast.Constant) else _word(each) for each in node.values
        )
        yield "".join(map(str, parts))
    elif isinstance(node, ast.BinOp):
        yield from _joined(scope, node, folder, depth)
    elif isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from texts_of(scope, each, folder, depth - 1)
    elif isinstance(node, ast.Call):
        yield from texts_of(scope, _inside(node), folder, depth - 1)
    else:
        for each in scope.values(node):
            yield from texts_of(scope, each, folder, depth - 1)


def _inside(call: ast.Call) -> ast.expr | None:
    """Return the text inside `text("…")`, `dedent("…")`, `"…".format()` or `"…".strip()`."""
    if isinstance(call.func, ast.Attribute) and not call.args:
        return call.func.value
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("format", "replace", "join"):
        return call.func.value
    return call.args[0] if call.args else None


def _joined(scope: Scope, node: ast.BinOp, folder: Path, depth: int) -> Iterator[str]:
    lefts = list(texts_of(scope, node.left, folder, depth - 1))
    if not isinstance(node.op, ast.Add):
        yield from lefts
        return
    right = next(texts_of(scope, node.right, folder, depth - 1), _word(node.right))
    for left in lefts:
        yield left + right


def _text_or_file(value: object, folder: Path) -> Iterator[str]:
    if not isinstance(value, str):
        return
    file = folder / value
    if value.endswith(".sql") and "\n" not in value and file.is_file():
        yield file.read_text(encoding="utf-8", errors="replace")
    else:
        yield value


def _word(node: ast.AST) -> str:
    return _named(ast.unparse(node))


def _named(code: str) -> str:
    return "_" + re.sub(r"\W+", "_", code)


# --- effects ------------------------------------------------------------------------------------------------------


DATABASE = "database"
REQUEST = "request"
FILE = "file"
_RUNS_SQL = frozenset(
    """
    execute executemany execute_batch execute_values
    exec_driver_sql executescript run sql query
    copy_expert run_query raw fetch get_records
    get_first get_pandas_df
    """.split()
)
_SQL_ARGUMENTS = ("sql", "hql", "query", "statement", "cql")
_ADDING = frozenset(
    """
    insert_rows insert_one insert_many insert_all
    bulk_load bulk_insert_rows bulk_insert_mappings
    bulk_save_objects incr incrby incrbyfloat hincrby
    hincrbyfloat zincrby insertInto put_records
    insert_rows_json insert_rows_from_dataframe
    """.split()
)
_INSERTS = {"SQLInsertRowsOperator": "", "S3ToRedshiftOperator": "APPEND"}
"""Operators that insert rows, and the default method of each operator."""
_ICEBERG = re.compile(r"\b(load_table|create_table(_if_not_exists)?)\(\)$")
_ICEBERG_WRITES = ("append", "overwrite", "upsert", "delete")
_APPENDING = {
    "save_mode": "append",
    "write_disposition": "WRITE_APPEND",
    "if_exists": "append",
    "if_table_exists": "append",
}
_SETTING = frozenset(
    """
    update_one update_many replace_one delete_one
    delete_many bulk_write hset hmset sadd zadd put_item
    upsert_rows executesql write_database
    """.split()
)
_UPLOADS = frozenset(
    """
    put_object upload_file upload_fileobj upload_blob
    upload_from_string upload_from_filename load_string
    load_bytes load_file load_file_obj
    """.split()
)
_DUMPS = frozenset(
    """
    to_csv to_parquet to_json to_excel to_pickle
    to_feather to_hdf to_orc to_delta
    """.split()
)
_WRITES = frozenset("write_text write_bytes saveAsTable saveAsTextFile".split())
_WRITER = frozenset("parquet csv json orc text save jdbc".split())
_COPIES = frozenset(f"shutil.{name}" for name in "copy copy2 copyfile copytree move".split()) | {
    "os.rename",
    "os.replace",
    "pyarrow.parquet.write_table",
    "numpy.save",
    "numpy.savetxt",
    "deltalake.write_deltalake",
}
_LIBRARIES = ("requests.", "httpx.", "aiohttp.", "urllib3.")
_SENDING = ("post", "put", "patch", "delete")
_POSTS = ("HttpHook()", "HttpAsyncHook()", "HttpOperator", "SimpleHttpOperator")
_MESSAGES = frozenset(
    """
    send_message sendmail publish basic_publish produce
    chat_postMessage send_email lpush rpush xadd
    """.split()
)
_SENDERS = re.compile(r"(Publish|SendMessage|Post(?!gres)|Email)\w*Operator$")
_WRITE = re.compile(r"\.write\b")
_APPENDS = re.compile(r"\bmode(\(|=)'append'")
_MODE = re.compile(r"^(?=.*[wax+])[rwaxbt+]{1,3}$")
_OPENS = ("open", "io.open", "os.fdopen", "gzip.open", "codecs.open")
_TEMPORARY = ("tempfile.", "io.", "sys.std")


@dataclass(frozen=True)
class Effect:
    """A write, a request or a message that a call causes.

    :param kind: `database`, `request` or `file`.
    :param node: the call.
    :param adds: whether a second execution changes the result.
    :param statement: the SQL statement; None if the effect is no SQL statement.
    :param message: whether the call sends a message to a queue or a user.
    """

    kind: str
    node: ast.Call
    adds: bool
    statement: SqlWrite | None = None
    message: bool = False


def effects_of(scope: Scope, call: ast.Call, folder: Path) -> Iterator[Effect]:
    """Yield the effects of a call. There are none if the file does not reveal which function is called."""
    name = scope.name_of(call.func)
    last = _last(call, name)
    for statement in _statements(scope, call, name, folder):
        yield Effect(DATABASE, call, statement.adds, statement)
    if database := _database(scope, call, name, last):
        yield database
    if request := _request(scope, call, name, last):
        yield request
    if file := _file(scope, call, name, last, folder):
        yield file


def _statements(scope: Scope, call: ast.Call, name: str, folder: Path) -> Iterator[SqlWrite]:
    last = _last(call, name)
    given: list[ast.expr] = []
    called = isinstance(call.func, ast.Attribute) or name.startswith("psycopg")
    if last in _RUNS_SQL and called:
        given += call.args
    if last in _RUNS_SQL or is_operator(scope, call):
        given += [
            each for name in _SQL_ARGUMENTS if (each := scope.argument(call, name)) is not None
        ]
        given += _configured(scope.argument(call, "configuration"))
    for argument in given:
        for text in texts_of(scope, argument, folder):
            yield from writes_of(text)


def _last(call: ast.Call, name: str) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else name.rpartition(".")[2]


def is_operator(scope: Scope, call: ast.Call) -> bool:
    return scope.argument(call, "task_id") is not None


def _configured(configuration: ast.expr | None) -> list[ast.expr]:
    """Return the SQL queries in the configuration of a BigQuery job."""
    nodes = [] if configuration is None else ast.walk(configuration)
    dicts = [each for each in nodes if isinstance(each, ast.Dict)]
    pairs = [pair for each in dicts for pair in zip(each.keys, each.values, strict=True)]
    return [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "query"]


# --- databases ----------------------------------------------------------------------------------------------------


def _database(scope: Scope, call: ast.Call, name: str, last: str) -> Effect | None:
    appends = [
        name
        for name, mode in _APPENDING.items()
        if scope.constant(scope.argument(call, name)) == mode
    ]
    if appends and last != "to_sql":
        return Effect(DATABASE, call, True)
    if last in _INSERTS and is_operator(scope, call):
        return _inserted(scope, call, _INSERTS[last])
    if not isinstance(call.func, ast.Attribute):
        return None
    if last in _ADDING:
        return _added(scope, call)
    if last in _ICEBERG_WRITES and _ICEBERG.search(scope.name_of(call.func.value)):
        return Effect(DATABASE, call, last == "append")
    if last == "to_sql":
        return Effect(DATABASE, call, scope.constant(scope.argument(call, "if_exists")) == "append")
    if last in _SETTING:
        return Effect(DATABASE, call, "$inc" in ast.unparse(call) or "$push" in ast.unparse(call))
    if last in ("add", "add_all", "merge") and "ession" in scope.name_of(call.func.value):
        return Effect(DATABASE, call, last != "merge")
    if last in _RUNS_SQL and call.args:
        return _core(scope, call, call.args[0])
    return None


def _inserted(scope: Scope, call: ast.Call, method: str) -> Effect:
    """Return the effect of an operator that inserts rows. It adds no rows if it replaces keys or empties the table."""
    said = str(scope.constant(scope.argument(call, "method")) or method).upper()
    empties = scope.argument(call, "preoperator") is not None
    table = scope.constant(scope.argument(call, "table_name") or scope.argument(call, "table"))
    adds = said in ("", "APPEND") and not empties
    statement = SqlWrite(table_name(table), adds) if isinstance(table, str) else None
    return Effect(DATABASE, call, adds, statement)


def _added(scope: Scope, call: ast.Call) -> Effect:
    replaces = any(
        scope.constant(scope.argument(call, each)) is True for each in ("replace", "overwrite")
    )
    table = scope.constant(_argument(scope, call, 0, "table"))
    statement = SqlWrite(table_name(table), not replaces) if isinstance(table, str) else None
    return Effect(DATABASE, call, not replaces, statement)


def _core(scope: Scope, call: ast.Call, given: ast.expr) -> Effect | None:
    """Return the effect of an SQLAlchemy statement, such as `table.insert()` or `insert(table)`."""
    for value in (given, *scope.values(given)):
        for verb in (_verb(scope, each) for each in calls_in(value)):
            if verb in ("insert", "update", "delete"):
                keyed = re.search(r"\bon_(conflict|duplicate)", ast.unparse(value))
                return Effect(DATABASE, call, verb == "insert" and keyed is None)
    return None


def _verb(scope: Scope, call: ast.Call) -> str:
    name = scope.name_of(call.func)
    known = isinstance(call.func, ast.Attribute) or name.startswith("sqlalchemy")
    return _last(call, name) if known else ""


# --- requests -----------------------------------------------------------------------------------------------------


def _request(scope: Scope, call: ast.Call, name: str, last: str) -> Effect | None:
    if name.startswith(_LIBRARIES):
        verb = last
        if last == "request" or last == "urlopen":
            verb = str(scope.constant(_argument(scope, call, 0, "method"))).lower()
        return Effect(REQUEST, call, verb == "post") if verb in _SENDING else None
    if name == "urllib.request.urlopen":
        return _opened(scope, call)
    made = name.removesuffix(".run")
    if made.endswith(_POSTS):
        return _posted(scope, call)
    if is_operator(scope, call):
        return _operated(scope, call, last)
    if last in _MESSAGES and (isinstance(call.func, ast.Attribute) or name.startswith("airflow.")):
        return Effect(REQUEST, call, True, message=True)
    return None


def _operated(scope: Scope, call: ast.Call, last: str) -> Effect | None:
    """Return the request or message that an operator sends, according to its class and its `method`."""
    if str(scope.constant(scope.argument(call, "method"))).upper() == "POST":
        return Effect(REQUEST, call, True)
    match = _SENDERS.search(last)
    return Effect(REQUEST, call, match[1] != "Email", message=True) if match else None


def _opened(scope: Scope, call: ast.Call) -> Effect | None:
    request = call.args[0] if call.args else None
    made = [request, *scope.values(request)] if request is not None else []
    requests = [each for each in made if isinstance(each, ast.Call)]
    sends = any(_argument(scope, each, 1, "data") is not None for each in (call, *requests))
    methods = [str(scope.constant(scope.argument(each, "method"))).lower() for each in requests]
    verb = next((each for each in methods if each != "none"), "post" if sends else "get")
    return Effect(REQUEST, call, verb == "post") if verb in _SENDING else None


def _posted(scope: Scope, call: ast.Call) -> Effect | None:
    """Return the request of an HttpHook or an HttpOperator. The default of `method` is POST."""
    method = scope.argument(call, "method")
    if isinstance(call.func, ast.Attribute):
        for made in (call.func.value, *scope.values(call.func.value)):
            method = _argument(scope, made, 0, "method") if isinstance(made, ast.Call) else method
    verb = str(scope.constant(method) or "post").lower()
    return Effect(REQUEST, call, verb == "post") if verb in _SENDING else None


# --- files --------------------------------------------------------------------------------------------------------


def _file(scope: Scope, call: ast.Call, name: str, last: str, folder: Path) -> Effect | None:
    path = call.func.value if isinstance(call.func, ast.Attribute) else None
    if last in _RUNS_SQL and call.args and _copies_out(scope, call.args[0], folder):
        return Effect(FILE, call, False)
    if name in _OPENS or last == "open":
        return _opened_file(scope, call, None if name in _OPENS else path)
    if name in _COPIES:
        return _written(scope, call, call.args[1] if len(call.args) > 1 else None, False)
    if last in _DUMPS and path is not None:
        to = _first(call)
        adds = scope.constant(scope.argument(call, "mode")) == "a"
        return _written(scope, call, to, adds) if to is not None else None
    if last in _UPLOADS and path is not None and _is_upload(call, name, last):
        return Effect(FILE, call, False)
    if path is not None and last in _WRITER and _is_writer(scope, path):
        return _spark_write(scope, call)
    return _written(scope, call, path, False) if last in _WRITES and path is not None else None


def _copies_out(scope: Scope, sql: ast.expr, folder: Path) -> bool:
    """Return whether SQL text writes a file, as `COPY … TO 'file'` does in DuckDB."""
    return any(_COPY_OUT.search(text) for text in texts_of(scope, sql, folder))


def _is_upload(call: ast.Call, name: str, last: str) -> bool:
    """Return whether a call uploads a file. Some methods named `load_…` only read."""
    named = {each.arg for each in call.keywords}
    return not last.startswith("load_") or "Hook" in name or bool(named & {"key", "bucket_name"})


def _opened_file(scope: Scope, call: ast.Call, path: ast.expr | None) -> Effect | None:
    """Return the effect of `open`. The mode is the second argument, or for `Path.open`, the first argument."""
    places = (1,) if path is None else (1, 0)
    for place in places:
        mode = scope.constant(_argument(scope, call, place, "mode"))
        if isinstance(mode, str) and _MODE.match(mode):
            where = _first(call) if place else path
            return _written(scope, call, where or path, "a" in mode)
    return None


def _written(scope: Scope, call: ast.Call, path: ast.expr | None, adds: bool) -> Effect | None:
    if path is not None and is_temporary(scope, path):
        return None
    return Effect(FILE, call, adds)


def is_temporary(scope: Scope, path: ast.expr, depth: int = 6) -> bool:
    """Return whether a path comes from tempfile, or is an in-memory buffer."""
    if depth == 0:
        return False
    for node in ast.walk(path):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        if scope.name_of(node).startswith(_TEMPORARY) or getattr(node, "id", "") == "tmp_path":
            return True
        if any(is_temporary(scope, each, depth - 1) for each in scope.values(node)):
            return True
    return False


def _is_writer(scope: Scope, path: ast.expr) -> bool:
    """Return whether an expression is `df.write`, with or without options."""
    return _WRITE.search(f"{ast.unparse(path)} {scope.name_of(path)}") is not None


def _spark_write(scope: Scope, call: ast.Call) -> Effect:
    return Effect(FILE, call, _APPENDS.search(ast.unparse(call)) is not None)


def _first(call: ast.Call) -> ast.expr | None:
    if call.args:
        return call.args[0]
    named = [each.value for each in call.keywords if each.arg in ("path", "path_or_buf", "file")]
    return named[0] if named else None


def _argument(scope: Scope, call: ast.Call, place: int, name: str) -> ast.expr | None:
    found = scope.argument(call, name)
    return found if found is not None or len(call.args) <= place else call.args[place]
