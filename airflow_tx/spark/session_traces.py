"""The traces of an application in its session on a server, seen in its requests to the server.

A session without traces is as good as a new one, and has its classes compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import grpc  # type: ignore[import-untyped]

# They only read, or write files and tables, which all sessions see.
_COMMANDS = frozenset({"write_operation", "write_operation_v2", "merge_into_table_command"})
_QUERY = re.compile(r"\s*(SELECT|WITH|VALUES)\b", re.IGNORECASE)
_CHANGES = frozenset({"set", "unset"})


class SessionTraces(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Sees the requests of one session.

    :ivar found: whether something may stay in it: a view, a function, a setting, or an unknown request.
    """

    def __init__(self) -> None:
        self.found = False

    def intercept_unary_unary(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        self._see(details.method, request)
        return call(details, request)

    def intercept_unary_stream(self, call: Callable[..., Any], details: Any, request: Any) -> Any:
        self._see(details.method, request)
        return call(details, request)

    def _see(self, method: str, request: Any) -> None:
        if method.endswith("/ExecutePlan"):
            self.found |= leaves_traces(request.plan)
        elif method.endswith("/Config"):
            self.found |= request.operation.WhichOneof("op_type") in _CHANGES


def leaves_traces(plan: Any) -> bool:
    """Ask whether a plan, as a client sends it, may leave something in its session."""
    kind = plan.WhichOneof("op_type")
    if kind == "root":
        return bool(plan.root.WhichOneof("rel_type") == "catalog")
    if kind != "command":
        return True
    command = plan.command.WhichOneof("command_type")
    if command == "sql_command":
        own = plan.command.sql_command
        return not _QUERY.match(own.input.sql.query if own.HasField("input") else own.sql)
    return command not in _COMMANDS
