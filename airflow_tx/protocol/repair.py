"""Repairs by a person: a state went back, was renamed, or everything begins again. Source: docs/protocol.md §§5, 7.

Each is one multi, checks what it has read, raises the generation, and is noted with who, when and why. A reset alone
takes several: it keeps the topology unusable until its last one, and can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_tx.errors import PreviewOutdated, RenameRefused, RepairRefused, StateError, TxError
from airflow_tx.protocol import garbage, rebuild
from airflow_tx.protocol.answers import Done, Repaired
from airflow_tx.protocol.api import Put, Store, Write
from airflow_tx.protocol.batch import TopologyRequest
from airflow_tx.protocol.batch_words import gone_in_words
from airflow_tx.protocol.begin import missing_folders
from airflow_tx.protocol.json_text import dumps
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.rebuild_plan import LEDGER_LOST, HeldState, RebuildPlan, plan_rebuild
from airflow_tx.protocol.records import (
    Counter,
    RepairRecord,
    TopologyRecord,
    TransactionRecord,
    decode,
    encode,
)
from airflow_tx.protocol.roll_forward import check_not_rolling, check_raw_not_rolling
from airflow_tx.protocol.step import Audit, Decision, Stamp, put_or_create
from airflow_tx.protocol.view import topologies

STATE_LOST = "state-lost"
RENAMED = "state-renamed"
RESET = "reset"
ACCEPT_CHANGE = "accept-change"
_RESETTING = "being reset: "


# --- --state-lost ------------------------------------------------------------------------------------------------


def state_lost(
    read: Reader, stamp: Stamp, paths: Paths, state: str, audit: Audit
) -> Decision[Repaired]:
    """Accept what a state holds, though it is less than the ledger committed to it.

    :raises RepairRefused: the ledger never committed to a state of this name, and is not about to.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current)
    opened = read.find(TransactionRecord, paths.transaction(current.txid))
    if state not in topology.states and (opened is None or state not in opened.fenced):
        known = ", ".join(sorted(topology.states)) or "none"
        raise _refuse(
            paths,
            STATE_LOST,
            f"the ledger has committed nothing to {state!r}",
            f"It knows: {known}.",
        )
    left = {name: txid for name, txid in topology.states.items() if name != state}
    births = {name: birth for name, birth in topology.births.items() if name != state}
    grants = {name: grant for name, grant in topology.grants.items() if name != state}
    # A new generation lifts a refusal permanently, so its mark goes, too.
    generation = topology.generation + 1
    after = replace(
        topology,
        generation=generation,
        blocked=None,
        states=left,
        births=births,
        grants=grants,
        # It may lack what was committed before, which no restatement may take back then.
        taken_back_from={**topology.taken_back_from, state: current.txid},
        rolling=None,
        op=stamp.op,
    )
    summary = f"state {state} was at transaction {topology.states.get(state, 0)}; what it holds now is accepted"
    return audit.repair(
        read,
        stamp,
        paths,
        [Put(paths.record, encode(after))],
        what=STATE_LOST,
        after=after,
        current=current.txid,
        summary=summary,
        change={
            "state": state,
            "txid": current.txid,
            "held_from": topology.taken_back_from.get(state, 0),
        },
    )


def rename_state(
    read: Reader, stamp: Stamp, paths: Paths, old: str, new: str, *, audit: Audit
) -> Decision[Repaired]:
    """Give a state another name. A writer under the old name is outranked.

    :raises RenameRefused: the ledger does not know the old name, or knows the new one.
    """
    topology = read.get(TopologyRecord, paths.record)
    check_not_rolling(paths, topology)
    current = read.get(Counter, paths.current)
    path = paths.transaction(current.txid)
    opened = read.find(TransactionRecord, path)
    begun = [] if opened is None else opened.fenced
    known = {*topology.states, *begun}
    if old not in known or new in known:
        problem = (
            f"the ledger knows {new!r} already"
            if new in known
            else f"the ledger does not know {old!r}"
        )
        remedy = f"It knows: {', '.join(sorted(known)) or 'none'}."
        raise RenameRefused(topology=paths.topology, old=old, problem=problem, remedy=remedy)

    def renamed(name: str) -> str:
        return new if name == old else name

    states = {renamed(name): txid for name, txid in topology.states.items()}
    births = {renamed(name): birth for name, birth in topology.births.items()}
    grants = {renamed(name): grant for name, grant in topology.grants.items()}
    since = {renamed(name): txid for name, txid in topology.taken_back_from.items()}
    names = {**{each: renamed(now) for each, now in topology.renamed.items()}, old: new}
    after = replace(
        topology,
        generation=topology.generation + 1,
        blocked=None,
        states=states,
        births=births,
        grants=grants,
        taken_back_from=since,
        columns={renamed(name): each for name, each in topology.columns.items()},
        renamed={each: now for each, now in names.items() if each != now},
        op=stamp.op,
    )
    writes: list[Write] = [Put(paths.record, encode(after))]
    if opened is not None and old in begun:
        outputs = {renamed(name): output for name, output in opened.outputs.items()}
        again = replace(opened, fenced=sorted(map(renamed, begun)), outputs=outputs, op=stamp.op)
        writes.append(Put(path, encode(again)))
    summary = f"state {old}, at transaction {topology.states.get(old, 0)}, is called {new} now"
    return audit.repair(
        read, stamp, paths, writes, what=RENAMED, after=after, current=current.txid, summary=summary
    )


def note_change(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    state: str,
    columns: Mapping[str, int],
    *,
    keys: Sequence[str] | None,
    receipt: str,
    audit: Audit,
) -> Decision[Repaired]:
    """Note that the values of a state were changed on purpose, so that they are compared with what they are now.

    :param columns: by column, how much more its total is than receipts and earlier changes say.
    :param keys: names of the keys that are gone, of which no restatement takes anything back; None: it is unknown which
        ones are, so no transaction before can be restated.
    :param receipt: the hash of the last receipt when the totals were compared.
    :raises PreviewOutdated: a transaction has ended since.
    """
    topology = read.get(TopologyRecord, paths.record)
    if topology.receipt != receipt:
        raise PreviewOutdated(what=f"State {state!r}", topology=paths.topology)
    current = read.get(Counter, paths.current)
    writes = list[Write]()
    if keys is None:
        since = {**topology.taken_back_from, state: current.txid}
        after = replace(topology, taken_back_from=since, op=stamp.op)
        writes.append(Put(paths.record, encode(after)))
    changed = [f"the total of {name} by {by:+}" for name, by in sorted(columns.items())]
    if keys:
        changed.append(gone_in_words(len(keys)))
    return audit.repair(
        read,
        stamp,
        paths,
        writes,
        what=ACCEPT_CHANGE,
        after=topology,
        current=current.txid,
        summary=f"{state}: its values were changed on purpose, {'; '.join(changed)}",
        change={
            "state": state,
            "columns": dict(columns),
            "txid": current.txid - 1,
            "keys": [*(keys or ())],
        },
    )


def keys_gone(
    read: Reader, paths: Paths, state: str, txid: int, renamed: Mapping[str, str]
) -> frozenset[str]:
    """Name the keys that a state has lost since a transaction by changes that a person accepted.

    :param renamed: per earlier name of a state, its name now.
    """
    found = set[str]()
    for number in sorted(map(int, read.names_if_any(paths.repairs))):
        record = read.peek(RepairRecord, paths.repair(number))
        change = record.change
        if record.what == RESET:
            found.clear()  # another life of the ledger begins
        elif (
            record.what == ACCEPT_CHANGE
            and change["txid"] >= txid
            and renamed.get(change["state"], change["state"]) == state
        ):
            found.update(change["keys"])
    return frozenset(found)


# --- --reset -----------------------------------------------------------------------------------------------------


def close_for_reset(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Done]:
    """Close the topology until `reset` is done; every step that tries to use it names the command."""
    check_raw_not_rolling(paths, read.raw(paths.record))
    command = f"airflow tx repair {paths.topology} --reset --why TEXT"
    before = {"incarnation": incarnation_of(read, paths)}
    mark = dumps({**before, "format": _RESETTING + command, "op": stamp.op}).encode()
    writes = (*missing_folders(read, paths), put_or_create(read, paths.record, mark))
    return Decision(Done(), writes, paths.record)


def incarnation_of(read: Reader, paths: Paths) -> str:
    """Return which life of the ledger there is, or was before a reset closed it; "": its record is lost or damaged."""
    data = read.raw(paths.record) or b""
    with suppress(ValueError, AttributeError):
        return str(json.loads(data).get("incarnation", ""))
    return ""


def is_being_reset(data: bytes) -> bool:
    """Ask whether the topology record is the mark that `close_for_reset` left."""
    try:
        return str(json.loads(data)["format"]).startswith(_RESETTING)
    except (ValueError, KeyError, TypeError):
        return False


def remove_records(store: Store, paths: Paths) -> None:
    """Delete every record below the folders of a topology, the notes of repairs aside."""
    for path in (*paths.folders, paths.wishes):
        if path not in (paths.base, paths.coordinator):
            garbage.empty(store, path)


def reset(
    read: Reader, stamp: Stamp, paths: Paths, request: TopologyRequest, audit: Audit
) -> Decision[Repaired]:
    """Make a new ledger, once everything below the folders is deleted and the states are empty."""
    after = request.made(stamp.op)
    writes = [
        put_or_create(read, paths.record, encode(after)),
        put_or_create(read, paths.current, encode(Counter(1))),
        put_or_create(read, paths.allocated, encode(Counter(0))),
    ]
    summary = "the ledger and its states were emptied; transaction 1 is next"
    return audit.repair(
        read, stamp, paths, writes, what=RESET, after=after, current=1, summary=summary
    )


# --- on a ledger -------------------------------------------------------------------------------------------------


class ResetIncomplete(TxError):
    """A reset that has begun and could not end."""

    template = (
        "Reset of topology {topology!r} is not complete: {reason}. Its ledger is closed, its states are emptied in "
        "part. Correct that, then repeat: airflow tx repair {topology} --reset --why TEXT"
    )


class Repairs:
    """The actions of a person on a ledger that went back in time, or whose states did."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def ledger_lost(
        self, held: Sequence[HeldState], request: TopologyRequest, audit: Audit
    ) -> Repaired:
        """Rebuild the ledger from the states. Runs whose transaction was open begin again when they are cleared.

        :param held: what the fence of every state says that has one.
        :raises RepairRefused: the fences do not agree, or the ledger is further than they are.
        :raises UnreadableRecord: another topology's record, so that the owner of the states is unknown.
        """
        plan = self._plan(held)
        self._ledger.store.ensure(self._ledger.paths.root)
        done = self._ledger.run(rebuild.ledger_lost, request, plan, audit=audit)
        self._ledger.sweep()
        return done

    def preview_ledger_lost(
        self, held: Sequence[HeldState], request: TopologyRequest, audit: Audit
    ) -> Decision[Repaired]:
        """Decide what `ledger_lost` would do, and write nothing. Raises as `ledger_lost`."""
        return self._ledger.preview(rebuild.ledger_lost, request, self._plan(held), audit=audit)

    def _plan(self, held: Sequence[HeldState]) -> RebuildPlan:
        plan = plan_rebuild(self._ledger.paths, held)
        self._check_owner(plan.incarnation)
        return plan

    def _check_owner(self, incarnation: str) -> None:
        """Refuse a state of a topology that is well: two topologies on one state resemble a lost ledger.

        :raises UnreadableRecord: of another topology, which may be the owner.
        """
        store = self._ledger.store
        own = self._ledger.paths

        for name in topologies(store, own.root):
            node = store.get(path := Paths(own.root, name).record)
            if name == own.topology or node is None or is_being_reset(node.data):
                continue  # a topology that is being reset gives up its states
            if decode(TopologyRecord, path, node.data).incarnation == incarnation:
                raise RepairRefused(
                    what=LEDGER_LOST,
                    topology=own.topology,
                    problem=f"its states belong to topology {name!r}",
                    remedy=f"If its DAG was renamed: airflow tx rename {name} {own.topology} --why TEXT. Else use "
                    "another table: one state serves one topology.",
                )

    def reset(
        self, request: TopologyRequest, audit: Audit, *, clear: Callable[[], None]
    ) -> Repaired:
        """Forget everything: the next transaction is 1, from the start of the source. If it fails, repeat it.

        Not covered: a committer that still lives. End the topology's runs first.

        :param clear: empties the states, their fences included; called while no step can use the topology. Find out
            before whether it can: the records of the ledger are deleted first.
        :raises ResetIncomplete: the topology stays closed until this is repeated.
        """
        ledger = self._ledger
        paths = ledger.paths
        ledger.store.ensure(paths.root)
        ledger.run(close_for_reset)
        try:
            remove_records(ledger.store, paths)
            clear()
            return ledger.run(reset, request, audit)
        except Exception as error:
            where = f"state {error.state!r}: " if isinstance(error, StateError) else ""
            raise ResetIncomplete(
                topology=paths.topology, reason=where + reason_of(error)
            ) from error


def reason_of(error: Exception) -> str:
    """Say why something failed, without the advice that is meant for the tasks of a transaction."""
    fields = error.fields if isinstance(error, TxError) else {}
    return str(fields.get("reason") or fields.get("problem") or error) or type(error).__name__


def _refuse(paths: Paths, what: str, problem: str, remedy: str) -> RepairRefused:
    return RepairRefused(what=what, topology=paths.topology, problem=problem, remedy=remedy)
