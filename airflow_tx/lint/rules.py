"""The rules of `airflow tx lint`, each with a code, a reason and a remedy."""

from __future__ import annotations

from dataclasses import dataclass

RULES_PAGE = "docs/lint.md"
_TWICE = "this DAG counts twice when a run is cleared, because"


@dataclass(frozen=True)
class LintRule:
    """A rule, which finds one kind of code that counts rows twice."""

    code: str
    reason: str
    remedy: str

    @property
    def page(self) -> str:
        """Return the section of the documentation about the rule."""
        return f"{RULES_PAGE}#{self.code.lower()}"

    def reason_in(self, dag: str) -> str:
        """Return the reason of the rule, with the dag_id if it is known."""
        return self.reason.replace("this DAG", f"DAG {dag}") if dag else self.reason


_RULES = (
    LintRule(
        "TX101",
        "a task of a transaction writes to a database. A replay writes again",
        "return the rows, and let the CommitOperator write them with persistent_aggregate or append",
    ),
    LintRule(
        "TX102",
        "a task of a transaction sends a request that changes something. A replay sends it again",
        "send it in a task after the CommitOperator, with the topology and the txid as its idempotency key",
    ),
    LintRule(
        "TX103",
        "a task of a transaction writes a file outside of staging. A replay writes it again",
        "return the rows, or stage them with current_batch().stage(rows)",
    ),
    LintRule(
        "TX104",
        "a task of a transaction reads the clock. A replay reads another time",
        "take the time from the rows, or from the data interval of the run",
    ),
    LintRule(
        "TX105",
        "a task of a transaction draws a random value. A replay draws another one",
        "seed random.Random with a value of the batch, or make the id from the row",
    ),
    LintRule(
        "TX106",
        "a task of a transaction reads a Variable. A replay may read another value",
        "take the value from the rows of the batch, or write it into the DAG file",
    ),
    LintRule(
        "TX107",
        "catchup creates a run for each date, but the source gives each run its next rows, not the rows of that date",
        "set catchup=False, or use a DataIntervalSource",
    ),
    LintRule(
        "TX108",
        "no path leads from this task to the committer. The transaction commits without waiting for the task",
        "commit the output of the task, or write `task >> commit`; move a task that may fail out of the block",
    ),
    LintRule(
        "TX109",
        "max_active_runs is not above max_pending. No run is left for a replay",
        "set max_active_runs of the DAG above max_pending; replace @continuous by a coordinator_dag",
    ),
    LintRule(
        "TX110",
        "a task or an application changes a variable of its module. Its value depends on earlier runs",
        "create the variable inside the function",
    ),
    LintRule(
        "TX111",
        "an application emits a value that Spark computes differently each time. A replay emits another one",
        "compute the value from columns of the batch",
    ),
    LintRule(
        "TX112",
        "a commit phase writes a table before another state. A restatement that dies between the two cannot be skipped",
        "let the committer of the SqlTable or DeltaTable come last in the commit phase",
    ),
    LintRule(
        "TX113",
        "a task reads the logical date, but the source is a DataIntervalSource. In a manual run, the two dates differ",
        "read data_interval_start and data_interval_end",
    ),
    LintRule(
        "TX114",
        "a task of a transaction reads a folder, or the number of its try. A replay may read something else",
        "read the files by a FileSource; make names of files from the row or the txid",
    ),
    LintRule(
        "TX201",
        f"{_TWICE} a task adds rows or amounts to a database",
        "make the DAG a transaction, or replace the rows of the run in one database transaction",
    ),
    LintRule(
        "TX202",
        f"{_TWICE} a task sends a request or a message again",
        "give the receiver an idempotency key",
    ),
    LintRule(
        "TX203",
        f"{_TWICE} a task appends to a file or a table",
        "overwrite the part of the run, or make the DAG a transaction",
    ),
)
RULES = {rule.code: rule for rule in _RULES}
