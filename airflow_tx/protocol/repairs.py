"""Runs the repairs of `repair.py` on a ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_tx.errors import RepairRefused, StateError, TxError
from airflow_tx.protocol import repair
from airflow_tx.protocol.answers import Repaired
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.rebuild import LEDGER_LOST, Held, rebuilt
from airflow_tx.protocol.records import TopologyRecord, decode
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.topology import TopologyRequest
from airflow_tx.protocol.view import topologies


class ResetIncomplete(TxError):
    """A reset that has begun and could not end."""

    template = (
        "Reset of topology {topology!r} is not complete: {reason}. Its ledger is closed, its states are emptied in "
        "part. Correct that, then repeat: airflow tx repair {topology} --reset"
    )


class Repairs:
    """What a person may do to a ledger that, or whose states, went back in time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def state_lost(self, state: str, audit: Audit) -> Repaired:
        """Accept what `state` holds, though it is less than was committed to it. What is missing stays missing.

        :raises RepairRefused: see `repair.state_lost`.
        :raises UnreadableRecord: there is no such topology.
        """
        return self._ledger.run(repair.state_lost, state, audit)

    def rename_state(self, old: str, new: str, audit: Audit) -> Repaired:
        """Let a state have another name; the state itself has it already.

        :raises RenameRefused: see `repair.rename_state`.
        """
        return self._ledger.run(repair.rename_state, old, new, audit)

    def ledger_lost(self, held: Sequence[Held], request: TopologyRequest, audit: Audit) -> Repaired:
        """Take the place to go on from the states. Runs whose transaction was open begin anew when they are cleared.

        :param held: what the fence of every state says that has one.
        :raises RepairRefused: see `rebuilding.rebuilt` and `repair.ledger_lost`.
        :raises UnreadableRecord: another topology's record, so that nobody knows whose the states are.
        """
        paths = self._ledger.paths
        plan = rebuilt(paths, held)
        self._check_owner(plan.incarnation)
        self._ledger.store.ensure(paths.root)
        done = self._ledger.run(repair.ledger_lost, request, plan, audit)
        self._ledger.sweep()
        return done

    def _check_owner(self, incarnation: str) -> None:
        """A state of a topology that is well is not taken from it: two topologies on one look like a lost ledger.

        :raises UnreadableRecord: of another topology, which may be the owner.
        """
        store, own = self._ledger.store, self._ledger.paths
        for name in topologies(store, own.root):
            node = store.get(path := Paths(own.root, name).record)
            if name == own.topology or node is None or repair.is_being_reset(node.data):
                continue  # one that is being reset gives its states up
            if decode(TopologyRecord, path, node.data).incarnation == incarnation:
                raise RepairRefused(
                    what=LEDGER_LOST,
                    topology=own.topology,
                    problem=f"its states belong to topology {name!r}",
                    remedy=f"If its DAG was renamed: airflow tx rename {name} {own.topology} --why TEXT. Else use "
                    "another table: one state serves one topology.",
                )

    def reset(self, request: TopologyRequest, audit: Audit, *, clear: Callable[[], None]) -> Repaired:
        """Forget everything: the next transaction is 1, from the start of the source. If it fails, repeat it.

        Not covered: a committer that still lives. End the topology's runs first.

        :param clear: empties the states, their fences included; called while nobody can use the topology. Whether it
            can is to be found out before: what the ledger held is lost by then.
        :raises ResetIncomplete: the topology stays closed until this is repeated.
        """
        ledger, paths = self._ledger, self._ledger.paths
        ledger.store.ensure(paths.root)
        ledger.run(repair.close_for_reset)
        try:
            repair.empty(ledger.store, paths)
            clear()
            return ledger.run(repair.reset, request, audit)
        except Exception as error:
            where = f"state {error.state!r}: " if isinstance(error, StateError) else ""
            raise ResetIncomplete(topology=paths.topology, reason=where + reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """Why something failed, without the advice that is meant for the tasks of a transaction."""
    fields = error.fields if isinstance(error, TxError) else {}
    return str(fields.get("reason") or fields.get("problem") or error) or type(error).__name__
