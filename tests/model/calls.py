"""What the calls of processes do to a world: to the ledger, to the states, and to Airflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from airflow_tx.base.errors import FenceOutranked, OutcomeUnknown, StateUnavailable, TxError
from airflow_tx.ledger.api import Node, Unchanged
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.records import Ack, decode
from airflow_tx.state import write_together
from airflow_tx.transaction.commit.turn import read_line
from airflow_tx.transaction.processing.begin import room
from tests.model.machine import Answer, Machine, Place, Reply
from tests.model.product import Work, memory_state, run_id
from tests.model.promises import became_final, check_phases, offered
from tests.model.shapes import PATHS, TASK, Shape
from tests.model.world import Actor, ModelStore, Violation, World, put


class Calls:
    """The next call of a process, and what comes of it."""

    shape: Shape
    machine: Machine
    store: ModelStore
    eager: bool

    def enabled(self, world: World, actor: Actor) -> bool:
        """Whether its call is answered at all now: one that waits is not, until there is something new."""
        call = actor.place.call
        assert call is not None
        if call[0] == "wait":
            # It is final: nothing will change any more, and the wait ends as its time is up.
            over = all(version is None for version in call[2][1:])
            return over or bool(self._versions(world, call[1]) != call[2])
        if call[0] == "defer" and call[1] == "turn":
            txid, op, waited = call[2:]
            self.store.nodes = world.nodes
            line = read_line(ReadOnlyLedger(self.store, PATHS), txid, ())
            return line.wake_event(op=op, waited=json.loads(waited)) is not None
        if call[0] == "defer":
            self.store.nodes = world.nodes
            return room(self.store, PATHS, max_pending=call[2], key=run_id(self.shape, actor.run)) is not None
        return bool(call[0] != "marked")

    def spawned(self, world: World, actor: Actor, spec: tuple[Any, ...]) -> Actor:
        """A new process, as far as it gets by reading."""
        return self._read_on(world, actor, lambda answer: self.machine.spawn(spec, answer))

    def _read_on(self, world: World, actor: Actor, go: Callable[[Answer | None], Place]) -> Actor:
        """With `eager`, a process reads as soon as it can; see the explorer for why nothing is lost."""
        if not self.eager:
            return replace(actor, place=go(None))
        view = actor.view

        def answer(call: tuple[Any, ...]) -> Reply:
            nonlocal view
            _, reply, view = self._call(world, actor, call, view)
            return reply

        place = go(answer)
        return replace(actor, place=place, view=view)

    def answered(
        self, world: World, actor: Actor, *, lost: str = "", reply: Reply | None = None
    ) -> tuple[World, Actor]:
        """After the actor's next call and its reply.

        :param lost: "done" or "not done", without an answer.
        :param reply: the answer, where it is not for the world to find.
        """
        call = actor.place.call
        assert call is not None
        view = actor.view
        if reply is None and lost != "not done":
            world, reply, view = self._call(world, actor, call, view)
            actor = next((each for each in world.actors if each.ident == actor.ident), actor)
        if lost and call[0] == "multi":
            paths = ", ".join(sorted(write.path for write in call[2]))
            reply = Reply.of_error(OutcomeUnknown(paths=paths, reason="lost"))
        elif lost:
            names = ", ".join(f"s{work.number}" for work in call[1]) if call[0] == "write" else f"s{call[1]}"
            reply = Reply.of_error(StateUnavailable(state=names, where="model", reason="lost"))
        assert reply is not None
        here, given = actor.place, reply
        moved = self._read_on(world, replace(actor, view=view), lambda answer: self.machine.resume(here, given, answer))
        return world, moved

    def doomed(self, world: World, call: tuple[Any, ...]) -> bool:
        if call[0] == "multi":
            nodes = world.nodes
            required = [r for r in call[1] if isinstance(r, Unchanged)]
            return any(r.path not in nodes or nodes[r.path].version != r.version for r in required)
        return call[0] == "write" and self._written(world, call[1])[1].refused_by(FenceOutranked)

    # --- one call

    def _call(
        self, world: World, actor: Actor, call: tuple[Any, ...], view: dict[str, Any] | None
    ) -> tuple[World, Reply, dict[str, Any] | None]:
        kind = call[0]
        nodes = world.nodes if view is None else view
        if kind == "get":
            if call[1] == PATHS.owner:
                return world, Reply(self._owner(world)), view
            return world, Reply(nodes.get(call[1])), view
        if kind == "sync":
            return world, Reply(), None
        if kind == "versions":
            return world, Reply(self._versions(world, call[1])), view
        if kind == "children":
            self.store.nodes = nodes
            return world, Reply(self.store.children(call[1])), view
        if kind == "multi":
            # Refused or not, its answer comes after all that went before it.
            self._check_ack(actor, call)
            return *self._multi(world, call), None
        if kind == "write":
            return *self._written(world, call[1]), view
        if kind in ("fence", "holds", "multi_get", "clear"):
            return *self._state_call(world, *call), view
        return *self._airflow(world, actor, call), view

    def _check_ack(self, actor: Actor, call: tuple[Any, ...]) -> None:
        """Nobody acks in the name of another try."""
        if actor.task != TASK:
            return
        own = self.machine.spec(actor.place)[-2]
        for write in call[2]:
            if "/p@" in write.path:
                entry = decode(Ack, write.path, write.data)
                if entry.done and entry.task_try != own:
                    raise Violation(f"try {own} acked as {entry.task_try}")

    def _versions(self, world: World, paths: tuple[str, ...]) -> tuple[int | None, ...]:
        found = (world.nodes.get(path) for path in paths)
        return tuple(None if node is None else node.version for node in found)

    def _owner(self, world: World) -> Node | None:
        """Whoever holds the turn shows as long as it lives."""
        record = world.record(world.current)
        if record is None:
            return None
        run = world.number(record.run_id)
        return Node(b"{}", 0) if any(a.run == run and a.task == "commit" for a in world.actors) else None

    def _multi(self, world: World, call: tuple[Any, ...]) -> tuple[World, Reply]:
        self.store.nodes = world.nodes
        try:
            self.store.multi(call[1], call[2])
        except TxError as error:
            return world, Reply.of_error(error)
        after = replace(world.with_nodes(self.store.nodes), behind=world.nodes if self.shape.lags else None)
        check_phases(world, after)
        after = offered(self.shape, world, self._backed_up(world, after))
        if after.current > world.current:
            after = self._without_run(became_final(world, after))
        return after, Reply()

    def _backed_up(self, world: World, after: World) -> World:
        """Keep the ledger of just before a first grant: it may be restored as long as its transaction is open."""
        if "set back" not in self.shape.people:
            return after
        one, two = world.record(world.current), after.record(world.current)
        if two is None:
            return replace(after, backup=None, backup_key=None)
        if one is not None and two.granted and not one.granted:
            return replace(after, backup=world.nodes, backup_key=world.store_key)
        return after

    def _without_run(self, world: World) -> World:
        """What a lane has committed needs no run: it is as one that has ended well."""
        number = world.current - 2
        if "lane" in self.shape.people and world.runs[number].stage == "absent":
            return world.with_run(replace(world.runs[number], stage="green"))
        return world

    def _state_call(self, world: World, method: str, index: int, *arguments: Any) -> tuple[World, Reply]:
        state = memory_state(index, self.shape.source)
        state.database.restore(world.states[index])
        found = getattr(state, method)(*arguments)
        if method != "clear":
            return world, Reply(tuple(each is not None for each in found) if method == "multi_get" else found)
        states = put(world.states, index, state.database.snapshot())
        return replace(world, states=states, raised=put(world.raised, index, None)), Reply()

    def _written(self, world: World, works: tuple[Work, ...]) -> tuple[World, Reply]:
        """One transaction of a store."""
        pairs = [work.pair(self.shape.source) for work in works]
        for work in works:
            memory_state(work.number, self.shape.source).database.restore(world.states[work.number])
        try:
            write_together(pairs)
        except TxError as error:
            return world, Reply.of_error(error)
        for work in works:
            token, highest = work.write.grant.token, world.raised[work.number]
            if not work.write.raising and highest is not None and token.rank < highest:
                raise Violation(f"token {token} wrote to s{work.number}, which had seen {highest}")
            database = memory_state(work.number, self.shape.source).database
            world = replace(
                world,
                raised=put(world.raised, work.number, max(highest or token.rank, token.rank)),
                states=put(world.states, work.number, database.snapshot()),
            )
        return world, Reply()

    def _airflow(self, world: World, actor: Actor, call: tuple[Any, ...]) -> tuple[World, Reply]:
        kind = call[0]
        if kind == "xcom":
            found = dict(world.runs[call[1]].task(call[2]).xcoms)
            return world, Reply(found.get(call[3]))
        if kind == "tasks":
            return world, Reply(tuple((name, task.state) for name, task in world.runs[call[1]].tasks))
        if kind == "run":
            return world, Reply(self._run_state(world, call[1]))
        if kind == "start_run":
            return self.start_run(world, call[1], reset=call[2])
        if kind == "current":
            return world, Reply(world.runs[actor.run].task(actor.task).live == actor.ident)
        if kind == "lost":
            return world, Reply(world.lost)
        if kind == "acted":
            return self._acted(world, *call[1:]), Reply()
        assert kind in ("wait", "defer", "confirmed"), call
        return world, Reply()

    def _acted(self, world: World, txids: tuple[int, ...], version: str) -> World:
        """Of all who were shown one version, one acts."""
        if version in world.acted:
            raise Violation(f"two people act on transaction {txids} as both were shown it")
        return replace(world, acted=world.acted | {version})

    def _run_state(self, world: World, number: int) -> str | None:
        run = world.runs[number]
        if run.stage == "running":
            first = world.live(number, "begin")
            return "queued" if first is not None and not first.place.wrote else "running"
        return {"absent": None, "green": "success"}.get(run.stage, "failed")

    def start_run(self, world: World, number: int, *, reset: bool) -> tuple[World, Reply]:
        raise NotImplementedError
