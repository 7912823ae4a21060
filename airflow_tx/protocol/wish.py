"""A person wants a committed transaction restated. Source: docs/protocol.md §11."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_tx.errors import NotTakenBack, RestateRefused, UnknownTxid
from airflow_tx.protocol.answers import Done, Replaced
from airflow_tx.protocol.api import Create, Delete, Put, Store, Write
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch import RestatedBatch
from airflow_tx.protocol.consumers import counted_of
from airflow_tx.protocol.json_text import digest
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import (
    Binding,
    Counter,
    History,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.protocol.replay import LIVE_RUN_STATES, BeginPass
from airflow_tx.protocol.step import Audit, Decision, Stamp, next_repair


@dataclass(frozen=True)
class Wish:
    """`wanted/<txid>`: a person wants a committed transaction restated; no run has begun that yet.

    :param key: of the run whose next `begin` restates it.
    :param changed_rows: whether that `begin` decides the rows again, with their current content.
    """

    txid: int
    key: str
    run_id: str
    who: str
    when: str
    why: str
    op: str
    changed_rows: bool = False


@dataclass(frozen=True)
class WishRequest:
    """A request of a person for a restatement.

    :param key: of its run, with `run_id` as the journal entry or the history gives them; the binding is compared.
    :param states: to which the transaction contributed, with their current names.
    :param first_day: the first day of which the journal still keeps entries, such as 2013-01-01; "": it keeps all.
    """

    txid: int
    key: str
    run_id: str
    states: tuple[str, ...] = ()
    changed_rows: bool = False
    first_day: str = ""


# --- want, withdraw ----------------------------------------------------------------------------------------------


def want(
    read: Reader, stamp: Stamp, paths: Paths, request: WishRequest, audit: Audit
) -> Decision[Wish]:
    """Note that a committed transaction is wanted restated; the next `begin` of its run does it.

    :raises RestateRefused: it cannot be restated; UnknownTxid: it was never allocated.
    """
    topology = read.get(TopologyRecord, paths.record)
    binding = _counting(read, paths, request)
    _check_entry(paths, request, binding)
    check_held(paths, topology, request.txid, request.states)
    path = paths.wish(request.txid)
    found = read.find(Wish, path)
    if found is not None:
        raise _refused(
            paths,
            request.txid,
            "a person has requested its restatement already",
            f"To continue that: airflow tx restate {paths.topology} --why TEXT. "
            f"To take it back: airflow tx restate {paths.topology} {request.txid} --withdraw",
        )
    wish = Wish(
        request.txid,
        request.key,
        request.run_id,
        **audit.noted(stamp),
        op=stamp.op,
        changed_rows=request.changed_rows,
    )
    folder = () if read.exists(paths.wishes) else (Create(paths.wishes, b""),)
    return Decision(wish, (*folder, Create(path, encode(wish))), path)


def withdraw(read: Reader, stamp: Stamp, paths: Paths, txid: int) -> Decision[Done]:
    """Take a wish back, as long as no run has begun it.

    :raises RestateRefused: no one wants it, or a transaction restates it already.
    """
    topology = read.get(TopologyRecord, paths.record)
    path = paths.wish(txid)
    wish = read.find(Wish, path)
    if wish is None:
        raise _refused(
            paths,
            txid,
            "no one asked for it, or its restatement has begun",
            f"airflow tx list {paths.topology} names that transaction; to leave it out: "
            f"airflow tx skip {paths.topology} TXID --why TEXT",
        )
    # The deletion leaves no record that holds the nonce of this step: the topology record does.
    noted = Put(paths.record, encode(replace(topology, op=stamp.op)))
    return Decision(Done(), (Delete(path), noted), paths.record)


def wishes(store: Store, paths: Paths) -> tuple[Wish, ...]:
    """List what people want restated and no run has begun, by txid."""
    children = store.children(paths.wishes)
    txids = sorted(int(name) for name in (children.names if children else ()))
    found = (Reader(store).peek_if_any(Wish, paths.wish(txid)) for txid in txids)
    return tuple(wish for wish in found if wish is not None)


def wishes_to_start(
    wished: Sequence[Wish],
    opened: Mapping[int, TransactionRecord],
    states: Mapping[str, str | None],
    *,
    limit: int,
) -> tuple[Wish, ...]:
    """Choose the wishes whose runs may be started now, by txid: of the window, one place is left to other batches.

    :param states: of the runs; one that was not asked for is left alone.
    :param limit: how many restatements may be under way at once.
    """
    begun = sum(record.replaces is not None for record in opened.values())
    waiting = [wish for wish in wished if wish.run_id in states]
    live = [wish for wish in waiting if states[wish.run_id] in LIVE_RUN_STATES]
    rest = [wish for wish in waiting if wish not in live]
    return tuple(rest[: max(limit - begun - len(live), 0)])


def most_restated(max_pending: int) -> int:
    """Count how many transactions may be restated at once, of the ones that may be open."""
    return max(max_pending - 1, 1)


def restating(read: Reader, paths: Paths, binding: Binding) -> int | None:
    """Find the open transaction that restates the one of a binding; None: none does.

    A rebuilt ledger gives a txid again, and never a birth.
    """
    noted = binding.restating
    record = None
    if noted is not None:
        record = read.find(TransactionRecord, paths.transaction(noted["txid"]))
    if noted is None or record is None or record.birth != noted["birth"]:
        return None
    return int(noted["txid"])


def check_held(
    paths: Paths,
    topology: TopologyRecord,
    txid: int,
    states: Collection[str],
    *,
    wanted: bool = False,
) -> None:
    """Refuse to take back what a state may not hold.

    :param states: to which the transaction contributed.
    :param wanted: whether there is a request, which must be withdrawn.
    :raises RestateRefused: one was lost since, or the ledger was rebuilt.
    """
    for state in sorted(states):
        first = topology.taken_back_from.get(state, 0)
        if txid < first:
            raise _refused(
                paths,
                txid,
                f"a repair has accepted what state {state!r} held before transaction {first}, so it may lack this one",
                f"To withdraw it: airflow tx restate {paths.topology} {txid} --withdraw"
                if wanted
                else f"To start from the beginning: airflow tx repair {paths.topology} --reset --why TEXT",
            )


def check_still_held(
    paths: Paths, topology: TopologyRecord, txid: int, replaced: int, taken_back: Mapping[str, str]
) -> None:
    """Refuse to take back what a state has lost since the restatement began, or what another state holds by now.

    :param txid: of the restatement, and `replaced` of the transaction that counts.
    :param taken_back: per state that `replaced` named, the state that its contribution is taken from.
    :raises NotTakenBack: it names the state.
    """
    for named, state in sorted(taken_back.items()):
        now = topology.renamed.get(named, named)
        if now != state or replaced < topology.taken_back_from.get(now, 0):
            raise NotTakenBack(
                state=now,
                problem=f"it may lack transaction {replaced}: since transaction {txid} began, a repair has accepted "
                "what it holds, or its name was given to another state",
                remedy=f"Transaction {replaced} still counts. To leave {txid} out: "
                f"airflow tx skip {paths.topology} {txid} --why TEXT",
            )


def held_at(
    read: Reader,
    paths: Paths,
    topology: TopologyRecord,
    taken_back: Mapping[str, str],
    sole: Collection[str] = (),
) -> str:
    """Digest what the ledger knows of the values that states hold: which columns they have, and how many repairs.

    A difference counts only as long as this is unchanged: else a column was dropped since, or a person changed values.

    :param taken_back: as for `check_still_held`.
    :param sole: states whose rows were asked for keys to which no other transaction had contributed.
    """
    columns = {state: topology.columns.get(state) for state in taken_back.values()}
    last = {state: topology.states.get(state) for state in sole}
    return digest([columns, next_repair(read, paths), last])


def _counting(read: Reader, paths: Paths, request: WishRequest) -> Binding:
    """Read the binding that says the transaction counts.

    :raises RestateRefused: it does not count, or is not final.
    """
    txid = request.txid
    current = read.peek(Counter, paths.current).txid
    if not 0 < txid <= read.peek(Counter, paths.allocated).txid:
        raise UnknownTxid(txid=txid, topology=paths.topology, path=paths.transactions)
    skipped = read.find(Skipped, paths.skipped(txid))
    if skipped is not None and skipped.replaces is not None:
        counts = f"it restated transaction {skipped.replaces}, and was skipped"
        remedy = (
            f"Restate that one: airflow tx restate {paths.topology} {skipped.replaces} --why TEXT"
        )
        raise _refused(paths, txid, counts, remedy)
    if skipped is not None:
        remedy = f"To get it back: airflow tx readmit {paths.topology} {txid} --why TEXT"
        raise _refused(paths, txid, "it was skipped", remedy)
    if txid >= current:
        remedy = f"To process it again: airflow tx replay {paths.topology} {txid}"
        raise _refused(paths, txid, "it is open", remedy)
    binding = read.find(Binding, paths.run(request.key))
    if binding is None or (binding.txid != txid and not binding.entry):
        problem = f"run {request.key!r} is not bound to it, as the ledger was rebuilt since"
        raise _refused(paths, txid, problem, _RESET.format(topology=paths.topology))
    if binding.txid != txid:
        remedy = f"Restate that one: airflow tx restate {paths.topology} {binding.txid} --why TEXT"
        raise _refused(paths, txid, f"transaction {binding.txid} has replaced it", remedy)
    other = restating(read, paths, binding)
    if other is not None:
        remedy = f"Let it be committed, or: airflow tx skip {paths.topology} {other} --why TEXT"
        raise _refused(paths, txid, f"transaction {other} restates it already", remedy)
    return binding


def _check_entry(paths: Paths, request: WishRequest, binding: Binding) -> None:
    remedy = _RESET.format(topology=paths.topology)
    if not binding.entry:
        problem = "the journal has no entry of it: the DAG had `journal` off when it was committed"
        raise _refused(paths, request.txid, problem, remedy)
    if binding.entry < request.first_day:
        problem = f"its journal entry {binding.entry} is older than the DAG's `journal` keeps"
        raise _refused(paths, request.txid, problem, remedy)


_RESET = (
    "Its contribution cannot be taken back. To start from the beginning: "
    "airflow tx repair {topology} --reset --why TEXT"
)


def _refused(paths: Paths, txid: int, problem: str, remedy: str) -> RestateRefused:
    return RestateRefused(txid=txid, topology=paths.topology, problem=problem, remedy=remedy)


# --- what `begin` makes of it ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restatement:
    """The committed transaction whose batch is taken again."""

    binding: Binding
    wish: Wish

    @property
    def replaces(self) -> dict[str, Any]:
        """The transaction that is replaced, as the record keeps it."""
        return {"txid": self.binding.txid, "entry": self.binding.entry}

    @property
    def wanted(self) -> dict[str, str]:
        """Who wants it, when and why."""
        return {"who": self.wish.who, "when": self.wish.when, "why": self.wish.why}

    def rows(self, begins: BeginPass, attempt: TransactionAttempt) -> Any:
        """Return the rows of the journal, or the current ones if they are wanted.

        :raises RestateRefused: its contribution cannot be taken back.
        """
        txid = self.binding.txid
        found = self._entry(begins)
        check_held(begins.paths, begins.topology, txid, found.states, wanted=True)
        if self.wish.changed_rows and found.rows is not None:
            return begins.current_rows(attempt, found.rows)
        return found.rows

    def counted(self, begins: BeginPass) -> dict[str, Any] | None:
        """Return what the tasks read of the batch then; None: this is unknown, or they are to read the current rows."""
        history = begins.read.find(History, begins.paths.history(self.binding.txid))
        found = self._entry(begins)
        if history is None or self.wish.changed_rows or not found.same:
            return None
        return counted_of(history.rows, history.digest)

    def _entry(self, begins: BeginPass) -> RestatedBatch:
        replaces = Replaced(self.binding.txid, self.binding.entry)
        ask = partial(begins.outside.read_entry, replaces, self.wish.changed_rows)
        return begins.read.ask("entry", replaces.entry, ask)

    def bound(self, txid: int, birth: str) -> Binding:
        """Make the binding of the run: the transaction that is restated counts until the new one is committed."""
        return replace(self.binding, restating={"txid": txid, "birth": birth})

    def writes(self, read: Reader, stamp: Stamp, paths: Paths, txid: int) -> tuple[Write, ...]:
        """Return the writes that fulfil the wish, once and for all."""
        return (Delete(paths.wish(self.binding.txid)),)
