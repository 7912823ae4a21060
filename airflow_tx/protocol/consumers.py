"""Rows that were read against rows that were emitted, before the turn is granted. Source: docs/protocol.md §4.

Only what was counted is compared: a task that did not count is no proof of anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_tx.errors import RowsDiffer
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch_words import counted
from airflow_tx.protocol.rows_digest import RowsDigest

if TYPE_CHECKING:
    from airflow_tx.protocol.records import Ack

    _Acks = Mapping[tuple[str, int], Ack]


class OutputName(NamedTuple):
    """An output of a task.

    :ivar content: tells its rows from the rows of another try of the task; "": unknown.
    """

    task_id: str
    map_index: int
    name: str
    content: str = ""


def content_of(entry: Mapping[str, Any]) -> str:
    """Return what tells the rows of a staged output from others: their digest, else the try that wrote them.

    :param entry: of an ack, or a reference.
    """
    return str(entry.get("row_digest") or entry.get("task_try") or "")


def names_to_json(outputs: Iterable[OutputName]) -> dict[str, Any]:
    """Give names of outputs as acks, manifests and descriptors keep them."""
    found = list(outputs)
    contents = [each.content for each in found]
    names = [[each.task_id, each.map_index, each.name] for each in found]
    return {"outputs": names, **({"contents": contents} if any(contents) else {})}


def names_from_json(value: Mapping[str, Any]) -> tuple[OutputName, ...]:
    """Read what `names_to_json` gave; earlier versions kept no contents."""
    names = value.get("outputs", ())
    contents = value.get("contents") or [""] * len(names)
    return tuple(
        OutputName(task, index, name, content)
        for (task, index, name), content in zip(names, contents, strict=True)
    )


_CONSUMER = (
    "Clear {task}, which has to read each of them once; one that means not to says reliable=False."
)


@dataclass(frozen=True)
class RowsRead:
    """What one try has read.

    :param found: the fullest of its readings.
    :param outputs: the outputs that it read as one; none: the batch.
    :param at_least: whether there may be more rows, which could not matter: as beside an empty side of a join.
    :param stopped: whether the reader stopped before the end, so that the number alone does not say that it was all.
    """

    found: RowsDigest
    outputs: tuple[OutputName, ...] = ()
    at_least: bool = False
    stopped: bool = False

    def proves_against(self, whole: RowsDigest) -> bool:
        """Ask whether it differs from what there was to read."""
        return not self.found.agrees(whole) and not (self.at_least and self.found.rows < whole.rows)

    def to_json(self) -> dict[str, Any]:
        """Give it as an ack and a manifest keep it."""
        stopped = {"stopped": True} if self.stopped else {}
        names = names_to_json(self.outputs)
        return {**self.found.to_json(), **names, "at_least": self.at_least, **stopped}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsRead:
        """Read what `to_json` gave."""
        found, names = RowsDigest.from_json(value), names_from_json(value)
        return cls(found, names, value["at_least"], value.get("stopped", False))


@dataclass(frozen=True)
class BatchRows:
    """What all consumers of a batch agree on.

    :param digests: by form: Spark and Python hash a row each in its own way.
    """

    rows: int
    digests: Mapping[str, str] = field(hash=False, default_factory=dict)

    @property
    def digest(self) -> str:
        """Write the digests as history keeps them."""
        return digest_text(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Give it as a record keeps it."""
        return {"rows": self.rows, "digests": dict(self.digests)}


def digest_text(counted: Mapping[str, Any] | None) -> str:
    """Write the digests of what a record keeps of its batch, as history keeps them; "" without any."""
    return " ".join(sorted((counted or {}).get("digests", {}).values()))


def counted_of(rows: int | None, text: str) -> dict[str, Any] | None:
    """Read what history keeps of the rows of a batch, as a record keeps it; None: no task counted them.

    :param text: as `digest_text` wrote it.
    """
    digests = {each.rpartition(":")[0]: each for each in text.split()}
    return None if rows is None else {"rows": rows, "digests": digests}


def consumed(read: Iterable[RowsRead]) -> int | None:
    """Return how many rows of the batch were read; None: not counted."""
    return max((each.found.rows for each in read if not each.outputs), default=None)


def check_rows(
    topology: str,
    attempt: TransactionAttempt,
    acks: _Acks,
    size: Mapping[str, Any] | None,
    first: Mapping[str, Any] | None,
) -> BatchRows | None:
    """Compare what the tasks of an attempt read with the source, with each other, and with what was emitted.

    :param topology: for the command in an error.
    :param acks: of the instances that count.
    :param size: how many rows the source counted, as a record keeps it.
    :param first: what the first complete attempt read, where a replay has to read the same.
    :return: the rows of the batch that they read; None: not counted.
    :raises RowsDiffer: they do not agree.
    """
    batch = _batch(attempt, acks, size)
    if batch is not None and first is not None:
        _check_first(topology, attempt, batch, first)
    for name, read in _reads(acks):
        if read.outputs:
            _check_outputs(attempt, acks, name, read)
    return batch


def unproven_rows(acks: _Acks, size: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Say why it is not proven that the tasks of an attempt consumed each row once; none: it is.

    Proven is a reading to the end that was counted exactly, or one of as many rows as there are known to be.

    :param acks: of the instances that count, once `check_rows` has found no difference.
    :param size: how many rows the source counted.
    """
    reads = list(_reads(acks))
    exact = [
        read.found.rows
        for _, read in reads
        if not read.outputs and not read.at_least and not read.stopped
    ]
    counted = None if size is None or size.get("at_most") else size.get("rows")
    known = {*exact, *([] if counted is None else [counted])}
    found = [
        f"task {_instance(*instance)}: {why}"
        for instance, ack in sorted(acks.items())
        for why in ack.unproven
    ]
    for name, read in reads:
        whole = known if not read.outputs else _total(acks, read)
        if (read.at_least or read.stopped) and read.found.rows not in whole:
            found.append(f"task {name}: {_short(read)}")
    batch = [read for _, read in reads if not read.outputs]
    if not batch and not found and counted != 0:
        found.append("no task has counted the rows of the batch")
    return tuple(found)


def _total(acks: _Acks, read: RowsRead) -> set[int]:
    emitted = [_emitted(acks, output) for output in dict.fromkeys(read.outputs)]
    return (
        {sum(each.rows for each in emitted if each is not None)} if None not in emitted else set()
    )


def in_words(outputs: tuple[OutputName, ...]) -> str:
    """Name what was read: outputs that are read as one, or the batch."""
    return f"output {outputs[0].name!r} of task {outputs[0].task_id}" if outputs else "the batch"


def _short(read: RowsRead) -> str:
    what = in_words(read.outputs)
    rows = counted(read.found.rows, "rows")
    if read.stopped:
        return f"it stopped after {rows} of {what}, and the total is unknown"
    return f"it read {rows} of {what} or more: Spark may stop early beside a join or SQL text"


def _instance(task: str, index: int) -> str:
    return task if index < 0 else f"{task}[{index}]"


def _batch(
    attempt: TransactionAttempt, acks: _Acks, size: Mapping[str, Any] | None
) -> BatchRows | None:
    known: dict[str, tuple[str, RowsDigest]] = {}
    consumers = [(name, read) for name, read in _reads(acks) if not read.outputs]
    for name, read in sorted(consumers, key=lambda consumer: consumer[1].at_least):
        _check_size(attempt, name, read, size)
        for other, whole in known.values():
            if read.proves_against(whole):
                problem = f"task {other} read {whole} of the batch, task {name} {read.found}"
                raise _differ(attempt, problem, _CONSUMER.format(task="the one"))
        if not read.at_least:
            known.setdefault(read.found.form, (name, read.found))
    found = [each for _, each in known.values()]
    return (
        BatchRows(found[0].rows, {each.form: each.text for each in found if each.text})
        if found
        else None
    )


def _check_size(
    attempt: TransactionAttempt, name: str, read: RowsRead, size: Mapping[str, Any] | None
) -> None:
    if size is None or (count := size.get("rows")) is None:
        return
    at_most = size.get("at_most", False)
    if not RowsRead(read.found, at_least=at_most or read.at_least).proves_against(
        RowsDigest(count)
    ):
        return
    problem = (
        f"task {name} read {counted(read.found.rows, 'rows')} of the batch, its source counted "
    )
    problem += f"at most {count}" if at_most else str(count)
    raise _differ(attempt, problem, _CONSUMER.format(task=name))


def _check_first(
    topology: str, attempt: TransactionAttempt, batch: BatchRows, first: Mapping[str, Any]
) -> None:
    other = [
        text for form, text in batch.digests.items() if first["digests"].get(form, text) != text
    ]
    if batch.rows == first["rows"] and not other:
        return
    known = ", ".join(first["digests"].values())
    problem = (
        f"this attempt read {counted(batch.rows, 'rows')} of the batch ({batch.digest}), "
        f"an earlier one {first['rows']} ({known}), and a transactional source gives the same again"
    )
    remedy = (
        "Give the source its rows back and clear the run; or take the current rows: "
        f"airflow tx replay {topology} {attempt.txid} --changed-rows --why TEXT."
    )
    raise _differ(attempt, problem, remedy)


def _check_outputs(attempt: TransactionAttempt, acks: _Acks, name: str, read: RowsRead) -> None:
    for output in read.outputs:
        entry = _entry(acks, output)
        if entry is not None and output.content not in ("", content_of(entry)):
            problem = (
                f"task {name} read output {output.name!r} of task {output.task_id}, which ran again "
                "since and gave another one"
            )
            raise _differ(attempt, problem, f"Clear {name}, which has to read it again.")
    emitted = [_emitted(acks, output) for output in dict.fromkeys(read.outputs)]
    known = [each for each in emitted if each is not None]
    if len(known) < len(emitted):
        return
    total = sum(known, RowsDigest(0))
    if read.proves_against(total):
        problem = (
            f"task {name} read {read.found} of {in_words(read.outputs)}, which emitted {total}"
        )
        raise _differ(attempt, problem, _CONSUMER.format(task=name))


def _emitted(acks: _Acks, output: OutputName) -> RowsDigest | None:
    """Find what a task says that it emitted; None: it does not vouch for it, or it is not staged."""
    entry = _entry(acks, output)
    return None if entry is None else RowsDigest.of(entry["rows"], entry.get("row_digest", ""))


def _entry(acks: _Acks, output: OutputName) -> Mapping[str, Any] | None:
    """Find what the ack of a task has of a staged output whose rows must be read once each."""
    ack = acks.get((output.task_id, output.map_index))
    entries: Iterable[Mapping[str, Any]] = ack.outputs if ack is not None else ()
    for entry in entries:
        if entry["name"] == output.name and "rows" in entry and entry.get("reliable", True):
            return entry
    return None


def _reads(acks: _Acks) -> Iterator[tuple[str, RowsRead]]:
    for (task, index), ack in sorted(acks.items()):
        for entry in ack.read:
            yield _instance(task, index), RowsRead.from_json(entry)


def _differ(attempt: TransactionAttempt, problem: str, remedy: str) -> RowsDiffer:
    return RowsDiffer(txid=attempt.txid, attempt=attempt.attempt, problem=problem, remedy=remedy)
