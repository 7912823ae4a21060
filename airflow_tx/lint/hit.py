"""A node that breaks a rule."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from airflow_tx.lint.scope import Scope


@dataclass(frozen=True)
class Hit:
    """A node that breaks a rule.

    :param scope: where the node is.
    :param dag: of a plain DAG: its dag_id.
    """

    scope: Scope
    code: str
    node: ast.expr | ast.stmt
    dag: str = ""
