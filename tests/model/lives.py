"""An executable model of the lives of states: every short history, and what the states hold after each step.

The oracle is the set of items that count by bindings. Slots: 0 values (opaque: the value of before its last one is
kept), 1 a table (rows by txid), 2 values that take a name. An item is the contribution of a transaction ("t", n), or a
change by hand ("h", k). The two changes cancel in their sum. The class Life of the package follows these rules.
"""
# ruff: noqa: C901 - each event is told in one place, with all of its rules

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Items = frozenset[Any]
Trace = list[str]


# --- the design: one life ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Segment:
    name: str
    first: int  # first txid that it was given under this name
    empty: bool  # it was empty before `first`: its beginning is known


@dataclass(frozen=True)
class Loss:
    txid: int  # the turn when it was accepted
    generation: int  # of the ledger after it: a fence of an older one is from before it
    found: int | None  # it had everything up to here, by fence and rows; None: unknown


@dataclass(frozen=True)
class Life:
    segments: tuple[Segment, ...]
    given: Mapping[int, tuple[Any, ...]]  # txid -> receipt, of all its names
    changes: tuple[tuple[int, int], ...]  # (number, txid of the last final transaction)
    losses: tuple[Loss, ...]  # that no roll forward has healed
    rebuilt: int  # up to here the ledger remembers nothing

    # a transaction, as of the fence that is looked at: losses after it do not count
    def held(self, txid: int, generation: int = 99) -> bool | None:
        if txid <= self.rebuilt:
            return None
        if txid not in self.given:
            return False
        for loss in self.losses:
            if txid < loss.txid and loss.generation <= generation:
                if loss.found is None:
                    return None
                if txid > loss.found:
                    return False
        return True

    def expected(self, fence_txid: int, generation: int) -> list[int] | None:
        """The transactions whose sums the values have under a fence; None: unknown."""
        found = []
        for txid in range(1, fence_txid + 1):
            is_held = self.held(txid, generation)
            if is_held is None:
                return None
            if is_held:
                found.append(txid)
        return found if self.segments and self.segments[0].empty else None

    def sure(self, fence_txid: int, mark: int) -> int:
        """How many changes are in for sure."""
        return sum(1 for number, txid in self.changes if txid < fence_txid or number <= mark)

    def can_restate(self, txid: int, by_txid: bool) -> bool:
        return True if by_txid else self.held(txid) is True

    def can_roll_forward(self, first: int, last: int, from_nothing: bool) -> bool:
        if from_nothing and not (self.segments and self.segments[0].empty):
            return False
        return all(txid > self.rebuilt for txid in range(first, last + 1))


# --- the world -------------------------------------------------------------------------------------------------------
class Fence(NamedTuple):
    txid: int
    att: int
    gen: int
    applied: bool
    mark: int
    imp: tuple[Any, ...]
    birth: int
    repl: int | None = None
    look: bool = False
    covered: Fence | None = None


class Store(NamedTuple):
    fence: Fence | None = None
    items: Items = frozenset()
    prev: Items = frozenset()
    newest: tuple[Any, ...] = (0, 0)
    own: Items = frozenset()  # receipts: (txid, birth, replaces)


class Open(NamedTuple):
    txid: int
    repl: int | None
    att: int
    birth: int


class Ledger(NamedTuple):
    cur: int = 1
    gen: int = 1
    names: tuple[Any, ...] = ("V", "T", None)
    last: tuple[Any, ...] = (None, None, None)
    receipts: tuple[Any, ...] = ()
    repairs: tuple[Any, ...] = ()
    open: Open | None = None
    rolling: tuple[Any, ...] | None = None
    marks: tuple[Any, ...] = (0, 0, 0)
    rebuilt: int = 0
    acc: tuple[Any, ...] = ("any", "any", "any")
    known: Items = frozenset()


class World(NamedTuple):
    led: Ledger = Ledger()
    stores: tuple[Any, ...] = (Store(), Store(), Store())
    saved: tuple[Any, ...] = (None, None)
    truth: tuple[Any, ...] = (frozenset(), frozenset(), None)
    hand: int = 0
    edit: int = 0
    births: int = 0
    lostled: int = 0
    restored: int = 0
    edit_at: int = 0


EMPTY: Items = frozenset()
MOST = 4
WRONG, REFUSED = "wrong", "refused"
Step = tuple[World | None, str]


def hand(k: int, items: Items) -> tuple[Any, ...]:
    return "h", k, frozenset(i[1] for i in items if i[0] == "t")  # a deletion: what was there decides what it did


def has(k: int, items: Items) -> bool:
    return any(i[:2] == ("h", k) for i in items)


def seen(store: Store) -> Any:
    return None if store.fence is None else (store.fence[:3], store.fence.birth, store.fence.look, store.newest)


def put(t: tuple[Any, ...], i: int, v: Any) -> tuple[Any, ...]:
    return t[:i] + (v,) + t[i + 1 :]


class Model:
    def __init__(self, without: Collection[str] = (), sums: bool = True) -> None:
        self.out = frozenset(without)
        self.sums, self.attempts, self.no_loss = sums, 3, False
        self.journal = True
        self.true: Model = Model([], sums) if self.out else self
        self._lives = dict[tuple[Ledger, int], Life]()

    def rule(self, name: str) -> bool:
        return name not in self.out

    # --- lives
    def life(self, led: Ledger, slot: int) -> Life:
        found = self._lives.get((led, slot))
        if found is None:
            found = self._lives[led, slot] = self._life(led, slot)
        return found

    def _life(self, led: Ledger, slot: int) -> Life:
        name = led.names[slot]
        changes = list[tuple[int, int]]()
        losses = list[Loss | tuple[str, int]]()
        given = dict[int, tuple[Any, ...]]()
        # from now back to its beginning: `name` is the name that it had then
        start, spans, until = 1, [], 99
        empty = True
        for kind, at, what, extra in reversed(led.repairs):
            if kind == "rename" and what[1] == name:
                spans.append((name, at, until))
                until, name = at - 1, what[0]
            elif kind in ("rename", "forget") and what[0] == name:
                start = at
                break  # another one had this name before
            elif kind == "change" and what[0] == name:
                changes.append((extra, at))
            elif kind == "loss" and what[0] == name:
                losses.append(Loss(at, extra[0], extra[1]))
            elif kind == "rolled" and what[0] == name:
                losses.append(("healed", extra))
        spans.append((name, start, until))
        if not self.rule("renames"):
            spans = [(led.names[slot], 1, 99)]
            changes = changes if led.names[slot] == name else []
        if not self.rule("forgotten"):
            spans[-1] = (spans[-1][0], 1, spans[-1][2])
        for each, first, to in spans:
            for receipt in led.receipts:
                if each in receipt[3] and first <= receipt[0] <= to:
                    given[receipt[0]] = receipt
        healed: int | None = None
        left = list[Loss]()
        for each in losses:  # newest first
            if isinstance(each, tuple):
                healed = each[1] if healed is None else min(healed, each[1])
            elif healed is None or healed >= each.txid:
                left.append(each)
        if not self.rule("losses"):
            left = []
        segments = tuple(Segment(n, f, empty and led.rebuilt < f) for n, f, _ in reversed(spans))
        return Life(segments, dict(sorted(given.items())), tuple(reversed(changes)), tuple(left), led.rebuilt)

    # --- the fence
    def behind(self, led: Ledger, slot: int, store: Store, grant: Open) -> str:
        fence, last = store.fence, led.last[slot]
        acc = led.acc[slot] if self.rule("loss_names_fence") else "any"
        if fence is None:
            return "" if last is None and acc in ("any", None) else "behind: nothing"
        accepted = last is None and fence.gen < led.gen and acc in ("any", seen(store))
        if last is None and not accepted and led.acc[slot] != "any" and fence.gen < led.gen:
            return "behind: another one than was accepted"
        if fence.look and self.rule("look"):
            if not accepted:
                return "behind: a look"
        if (
            fence.txid == grant.txid
            and fence.birth != grant.birth
            and fence.birth not in led.known
            and not (accepted and self.rule("birth_gives_way"))
        ):
            return "ledger behind"
        if not accepted:
            if fence.imp != store.newest:
                return "behind: rows are missing"
            if fence.txid == grant.txid:
                pass
            elif last is not None and fence.txid == last[0] and fence.applied and fence.att == last[1]:
                pass
            else:
                return "behind" if fence.txid < grant.txid else "ledger behind"
            if self.rule("mark") and led.marks[slot] > fence.mark:
                return "behind: lacks a change"
        return ""

    def raised(self, slot: int, store: Store, led: Ledger, grant: Open, **more: Any) -> Store:
        fence = store.fence
        if fence is not None and (fence.txid >= grant.txid or fence.gen != led.gen):
            store = self.undone(slot, store, grant.txid)
        mark = led.marks[slot] if fence is None or led.last[slot] is None else fence.mark
        return store._replace(
            fence=Fence(grant.txid, grant.att, led.gen, False, mark, store.newest, grant.birth, grant.repl, **more)
        )

    def undone(self, slot: int, store: Store, txid: int) -> Store:
        own = frozenset(r for r in store.own if r[0] != txid) if slot != 1 else store.own
        if slot == 1:
            return store._replace(
                items=store.items - {("t", txid)},
                newest=max([(i[1], 0) for i in store.items if i[1] != txid], default=(0, 0)),
            )
        if store.newest[0] == txid:
            return store._replace(items=store.prev, newest=(-txid, 0), own=own)
        return store

    def written(self, slot: int, store: Store, txid: int, att: int, repl: int | None, skip: bool = False) -> Any:
        items, prev = store.items, store.items
        if slot == 1 and store.newest[0] == txid:
            items = items - {("t", txid)}
        if slot != 1 and store.newest[0] == txid:
            items = prev = store.prev
        if not skip:
            if repl is not None:
                if ("t", repl) in items:
                    items = items - {("t", repl)}
                elif slot != 1:
                    items = items | {("minus", repl)}
            items = items | {("t", txid)}
        newest = store.newest if skip else (txid, att if slot != 1 else 0)
        assert store.fence is not None
        fence = store.fence._replace(applied=True, imp=newest)
        own = store.own if skip else store.own | {(txid, fence.birth, repl)}
        return store._replace(items=items, prev=prev, newest=newest, fence=fence, own=own)

    def for_good(self, store: Store, grant: Open) -> bool:
        return any(
            r[0] == grant.txid and r[2] is not None and (r[1] == grant.birth or not self.rule("birth"))
            for r in store.own
        )

    # --- events
    def slots(self, led: Ledger) -> list[int]:
        return [i for i, n in enumerate(led.names) if n is not None]

    def compare(self, w: World) -> str:
        for i in self.slots(w.led):
            if {e for e in w.stores[i].items if not w.edit or e[:2] != ("h", w.edit)} != w.truth[i]:
                return WRONG
        return ""

    def commit(self, w: World, repl: int | None, die: int | None) -> Step:
        led = w.led
        if led.rolling is not None:
            return None, REFUSED
        grant, births = led.open, w.births
        if grant is None:
            if led.cur > MOST:
                return None, REFUSED
            if repl is not None:
                if not any(r[0] == repl and r[1] == "c" for r in led.receipts) or any(
                    r[2] == repl and r[1] == "c" for r in led.receipts
                ):
                    return None, REFUSED
                for i in self.slots(led):
                    life = self.life(led, i)
                    if repl in life.given or repl <= led.rebuilt:
                        by_txid = i == 1 and self.rule("table_free")
                        if not life.can_restate(repl, by_txid) and self.rule("held"):
                            return None, REFUSED
                    elif i != 1:
                        return None, REFUSED  # it never was given that one
            births += 1
            grant = Open(led.cur, repl, 1, births)
        elif repl is not None:
            return None, REFUSED
        else:
            grant = grant._replace(att=grant.att + 1)
        if grant.att > self.attempts:
            return None, REFUSED
        led = led._replace(open=grant)
        w = w._replace(led=led, births=births)
        if grant.repl is not None:
            lost = [i for i in self.slots(led) if i != 1 and self.life(led, i).held(grant.repl) is not True]
            if lost and not (self.for_good(w.stores[1], grant) and self.rule("leave")):
                return w, REFUSED
        if die == 0:
            return w, ""
        stores, said = w.stores, ""
        for i in self.slots(led):
            said = self.behind(led, i, stores[i], grant)
            if said:
                return w._replace(stores=stores), REFUSED
            stores = put(stores, i, self.raised(i, stores[i], led, grant))
        if die == 1:
            return w._replace(stores=stores), ""
        order = self.slots(led)
        order = (
            [i for i in order if i != 1] + [1] * (1 in order)
            if self.rule("last")
            else [1] * (1 in order) + [i for i in order if i != 1]
        )
        truth = w.truth
        for n, i in enumerate(order):
            if die == 2 and n == len(order) - 1:
                break
            s = stores[i]
            if grant.repl is not None and i != 1 and self.life(led, i).held(grant.repl) is not True:
                stores = put(stores, i, self.written(i, s, grant.txid, grant.att, None, skip=True))
                continue  # left as accepted
            stores = put(stores, i, self.written(i, s, grant.txid, grant.att, grant.repl))
        w = w._replace(stores=stores)
        if die is not None:
            return w, ""
        names, last = [], led.last
        for i in order:
            names.append(led.names[i])
            last = put(last, i, (grant.txid, grant.att))
            if grant.repl is not None and i != 1 and self.life(led, i).held(grant.repl) is not True:
                names.pop()
                continue
            truth = put(truth, i, (truth[i] - {("t", grant.repl)}) | {("t", grant.txid)})
        receipts = led.receipts + ((grant.txid, "c", grant.repl, tuple(names), grant.att),)
        led = led._replace(acc=tuple("any" if i in order else a for i, a in enumerate(led.acc)))
        w = w._replace(truth=truth, led=led._replace(cur=grant.txid + 1, open=None, last=last, receipts=receipts))
        return w, self.compare(w)

    def skip(self, w: World) -> Step:
        led = w.led
        if led.open is None or led.rolling is not None:
            return None, REFUSED
        grant = led.open._replace(att=led.open.att + 1)
        if grant.att > self.attempts + 1:
            return None, REFUSED
        if 1 in self.slots(led) and self.for_good(w.stores[1], led.open) and self.rule("for_good"):
            return w, REFUSED
        stores = w.stores
        for i in self.slots(led):
            if self.behind(led, i, stores[i], grant):
                return w._replace(stores=stores), REFUSED
            s = self.raised(i, stores[i], led, grant)
            assert s.fence is not None
            stores = put(stores, i, s._replace(fence=s.fence._replace(applied=True, imp=s.newest)))
        last = led.last
        for i in self.slots(led):
            last = put(last, i, (grant.txid, grant.att))
        receipts = led.receipts + (
            (grant.txid, "s", grant.repl, tuple(led.names[i] for i in self.slots(led)), grant.att),
        )
        led = led._replace(acc=("any",) * 3)
        w = w._replace(stores=stores, led=led._replace(cur=grant.txid + 1, open=None, last=last, receipts=receipts))
        return w, self.compare(w)

    def quiet(self, w: World) -> bool:
        s = w.stores[0]
        return (
            w.led.names[0]
            and w.led.last[0]
            and s.fence is not None
            and s.fence.applied
            and s.fence.txid == w.led.last[0][0]
            and s.fence.imp == s.newest
            and w.led.open is None
            and s.items == w.truth[0]
        )

    def edit(self, w: World) -> Step:
        if w.edit or w.hand >= 2 or not self.quiet(w) or w.led.rolling is not None:
            return None, REFUSED
        k = w.hand + 1
        s = w.stores[0]
        return w._replace(
            edit=k, edit_at=w.led.cur - 1, stores=put(w.stores, 0, s._replace(items=s.items | {hand(k, s.items)}))
        ), ""

    def accept(self, w: World) -> Step:
        s = w.stores[0]
        if (
            not w.edit
            or not has(w.edit, s.items)
            or w.led.open is not None
            or s.fence is None
            or w.led.last[0] is None
            or s.fence.txid != w.led.last[0][0]
            or {e for e in s.items if e[:2] != ("h", w.edit)} != w.truth[0]
        ):
            return None, REFUSED
        led = w.led._replace(
            repairs=w.led.repairs
            + (("change", w.edit_at if self.rule("after") else w.led.cur - 1, (w.led.names[0],), w.edit),),
            marks=put(w.led.marks, 0, w.edit),
        )
        s = s._replace(fence=s.fence._replace(mark=w.edit))
        return w._replace(
            led=led,
            stores=put(w.stores, 0, s),
            truth=put(w.truth, 0, w.truth[0] | {e for e in s.items if e[:2] == ("h", w.edit)}),
            hand=w.edit,
            edit=0,
        ), ""

    def restore(self, w: World, which: str) -> Step:
        if w.restored >= 2:
            return None, REFUSED
        stores, edit = w.stores, w.edit
        for i in [0] if which in "Vv" else [1] if which == "T" else [0, 1]:
            saved = w.saved[i]
            if saved is None or saved == stores[i]:
                return None, REFUSED
            if which == "v":
                saved = stores[0]._replace(items=saved.items, prev=saved.prev, newest=saved.newest)
            if saved == stores[i]:
                return None, REFUSED
            stores = put(stores, i, saved)
        return w._replace(stores=stores, edit=edit, restored=w.restored + 1), ""

    def loss(self, w: World, slot: int) -> Step:
        led, s = w.led, w.stores[slot]
        f = s.fence
        if (led.last[slot] is None and led.open is None and led.acc[slot] == "any") or w.edit:
            return None, REFUSED
        if (
            f is not None
            and not f.look
            and not self.behind(led, slot, s, led.open or Open(led.cur, None, 1, w.births + 1))
        ):
            return None, REFUSED
        clean = self.undone(slot, s, led.cur)
        life = self.life(led, slot)
        found = None
        if f is None and not s.items:
            found = 0
        elif (
            f is not None
            and not f.look
            and f.imp == s.newest
            and f.applied
            and f.txid < led.cur
            and f.txid in life.given
            and life.given[f.txid][4] == f.att
        ):
            found = f.txid
        led = led._replace(
            gen=led.gen + 1,
            rolling=None,
            last=put(led.last, slot, None),
            acc=put(led.acc, slot, seen(s)),
            marks=put(led.marks, slot, 0),
            repairs=led.repairs + (("loss", led.cur, (led.names[slot],), (led.gen + 1, found)),),
        )
        keep = frozenset(e for e in clean.items)
        gone = tuple(r for r in led.repairs if not (r[0] == "change" and slot == 0 and not has(r[3], keep)))
        led = led._replace(repairs=gone)  # changes that went with the loss are accepted away, too
        return w._replace(led=led, truth=put(w.truth, slot, keep)), ""

    def lose(self, w: World, slot: int) -> Step:
        if w.restored >= 2 or w.stores[slot].fence is None:
            return None, REFUSED
        return w._replace(
            stores=put(w.stores, slot, Store()),
            restored=w.restored + 1,
        ), ""

    def rename(self, w: World) -> Step:
        led = w.led
        if (
            led.names[0] != "V"
            or led.names[2] is not None
            or led.rolling is not None
            or led.open is not None
            or led.last[0] is None
        ):
            return None, REFUSED
        return w._replace(
            led=led._replace(
                names=put(led.names, 0, "W"),
                gen=led.gen + 1,
                repairs=led.repairs + (("rename", led.cur, ("V", "W"), None),),
            )
        ), ""

    def reuse(self, w: World) -> Step:
        led = w.led
        if led.names[0] != "W" or led.names[2] is not None or led.open is not None:
            return None, REFUSED
        return w._replace(led=led._replace(names=put(led.names, 2, "V")), truth=put(w.truth, 2, EMPTY)), ""

    def forget(self, w: World) -> Step:
        led = w.led
        if led.names[0] is None or led.open is not None or led.rolling is not None or led.last[0] is None or w.edit:
            return None, REFUSED
        return w._replace(
            led=led._replace(
                names=put(led.names, 0, None),
                gen=led.gen + 1,
                last=put(led.last, 0, None),
                marks=put(led.marks, 0, 0),
                repairs=led.repairs + (("forget", led.cur, (led.names[0],), None),),
            ),
            stores=put(w.stores, 0, Store()),
            saved=put(w.saved, 0, None),
            truth=put(w.truth, 0, EMPTY),
        ), ""

    def back(self, w: World) -> Step:
        if w.led.names[0] is not None or w.led.open is not None:
            return None, REFUSED
        return w._replace(led=w.led._replace(names=put(w.led.names, 0, "W" if w.led.names[2] else "V"))), ""

    def rebuild(self, w: World) -> Step:
        if w.lostled or w.edit or w.led.rolling is not None:
            return None, REFUSED
        led, slots = w.led, self.slots(w.led)
        fences = {i: w.stores[i].fence for i in slots}
        if any(f is None or f.look or f.imp != w.stores[i].newest for i, f in fences.items()):
            return None, REFUSED
        top = max(f.txid for f in fences.values())
        newest = max(fences.values(), key=lambda f: (f.gen, f.txid, f.att))
        whole = all(f.txid == top and f.applied for f in fences.values())
        if any(f.txid < top - 1 or (f.txid == top - 1 and not f.applied) for f in fences.values()):
            return None, REFUSED
        if top + whole < led.cur:
            return None, REFUSED  # the states went back with it: not asked here
        gen = max(f.gen for f in fences.values()) + 1
        opened = None
        if (
            not whole
            and newest.repl is not None
            and 1 in slots
            and self.for_good(w.stores[1], Open(top, newest.repl, 1, newest.birth))
            and self.rule("remake")
        ):
            opened = Open(top, newest.repl, newest.att, newest.birth)
        cur = top + whole
        last = tuple((cur - 1, None) if i in slots and cur > 1 else None for i in range(3))
        last = tuple(
            (cur - 1, w.stores[i].fence.att if w.stores[i].fence.txid == cur - 1 else None) if each else None
            for i, each in enumerate(last)
        )
        truth = w.truth
        if whole and led.open is not None and led.open.txid == top:
            for i in slots:
                truth = put(truth, i, (truth[i] - {("t", led.open.repl)}) | {("t", top)})
        for (
            i
        ) in slots:  # a lost ledger forgets an accepted loss, too: if a backup with all of it came back, it is healed
            if any(r[0] == "loss" and r[2][0] == led.names[i] for r in led.repairs):
                truth = put(truth, i, self.undone(i, w.stores[i], top if not whole else 99).items)
        w = w._replace(truth=truth)
        new = Ledger(
            cur,
            gen,
            led.names,
            last,
            (),
            tuple(r for r in led.repairs if r[0] == "change") if self.rule("kept") else (),
            opened,
            None,
            led.marks if self.rule("kept") else (0, 0, 0),
            cur - 1,
            known=frozenset(f.birth for f in fences.values()),
        )
        # a fence of `top` - 1 tells attempt; one of `top` passes as the open one
        w = w._replace(led=new, lostled=1)
        return w, ""

    # --- roll forward
    def total(self, items: Collection[Any]) -> int:
        return sum(
            10 ** i[1] if i[0] == "t" else -(10 ** i[1]) if i[0] == "minus" else 5 if i[1] == 1 else -5 for i in items
        )

    def roll(self, w: World, slot: int, die: int | None) -> Step:
        led = w.led
        if (led.rolling is None and led.last[slot] is None and led.acc[slot] == "any") or w.edit:
            return None, REFUSED
        life, store = self.life(led, slot), w.stores[slot]
        last = max([0, *life.given, led.last[slot][0] if led.last[slot] else 0])
        if not last:
            return w, REFUSED
        if (slot == 1 and not self.rule("tables")) or not self.journal:
            return w, REFUSED
        fence, apart = store.fence, False
        if fence is None:
            if store.items:
                return w, REFUSED
            first, mark, nothing = min(life.given, default=last + 1), 0, True
            if not life.can_roll_forward(first, last, True):
                return w, REFUSED
            gen = 0
        else:
            nothing, gen, mark = False, fence.gen, fence.mark
            cur_is = fence.txid >= led.cur
            receipt = life.given.get(fence.txid)
            if fence.look:
                apart, first = True, 1
            elif cur_is:
                first = fence.txid
            elif receipt is None:
                return w, REFUSED
            else:
                first = fence.txid + 1 if fence.applied and receipt[4] == fence.att else fence.txid
            apart = apart or fence.imp != store.newest
        led2 = led

        def refused(s: Store) -> Step:
            return w._replace(led=end(led2, False), stores=put(w.stores, slot, s)), REFUSED

        def end(ledger: Ledger, whole: bool, found: int | None = None) -> Ledger:
            ledger = ledger._replace(rolling=None)
            if whole:
                attempt = life.given[last][4] if last in life.given else ledger.last[slot][1]
                ledger = ledger._replace(acc=put(ledger.acc, slot, "any"), last=put(ledger.last, slot, (last, attempt)))
            if found is None:
                return ledger
            done = ("rolled", ledger.cur, (ledger.names[slot],), found)
            return ledger._replace(repairs=(*ledger.repairs, done))

        if not apart and not nothing and first > last and not self.pending(life, store, fence, first)[0]:
            return w, REFUSED  # it lacks nothing
        led2 = led._replace(gen=led.gen + 2, rolling=led.rolling or ("on",))
        if apart:
            covered = fence.covered if fence.look else fence
            birth = fence.birth if fence.look and fence.txid == led.cur else led.open.birth if led.open else -1
            s = self.undone(slot, store, led.cur)
            s = s._replace(
                fence=Fence(led.cur, 0, led2.gen - 1, False, fence.mark, s.newest, birth, None, True, covered)
            )
            if die == 0:
                return w._replace(led=led2, stores=put(w.stores, slot, s)), ""
            store = s
            gen = covered.gen if covered else 0
            newest = abs(store.newest[0]) - 1 if store.newest[0] < 0 else store.newest[0]
            upto = self.fits(life, store, newest, gen)
            if upto is None:
                if self.rule("putback"):
                    s = store._replace(fence=covered)
                if die == 1:
                    return w._replace(led=led2, stores=put(w.stores, slot, s)), ""
                led2 = led2._replace(gen=led2.gen)
                return refused(s)
            first = newest + 1
            mark = 0
            fence = store.fence
        if not life.can_roll_forward(first, last, nothing):
            return refused(store if not apart else store._replace(fence=covered) if self.rule("putback") else store)
        # changes by hand: the ones that are not in, each behind its transaction
        known, missing = self.pending(life, store, fence if not apart else None, first, nothing)
        if known == "wrong":
            return refused(store if not apart else store._replace(fence=covered) if self.rule("putback") else store)
        todo = [t for t in life.given if first <= t <= last]
        steps = 0
        marks = mark

        def by_hand(store: Store, number: int) -> Store:
            if has(number, store.items) and known == "told":
                return store._replace(items=store.items | {("twice", number)})
            if has(number, store.items):
                return store  # the person looks
            return store._replace(items=store.items | {hand(number, store.items)})

        def due(store: Store, upto: int) -> Store:
            nonlocal missing, marks
            for number, at in list(missing):
                if at < upto:
                    store = by_hand(store, number)
                    missing.remove((number, at))
                    marks = max(marks, number)
            return store

        for t in todo:
            if self.rule("changes"):
                store = due(store, t)
            _, kind, repl, _, att = life.given[t]
            birth = next((b for n, b, _ in w.stores[1 - slot].own if n == t), 0) if slot < 2 else 0
            s = self.undone(slot, store, t) if store.newest[0] == t or slot == 1 else store
            s = s._replace(fence=Fence(t, att, led2.gen, False, marks, s.newest, birth, repl))
            s = self.written(slot, s, t, att, repl, skip=kind == "s")
            store = s
            steps += 1
            if die is not None and steps >= die:
                return w._replace(led=led2, stores=put(w.stores, slot, store)), ""
        if missing:
            if not self.rule("end_waits"):
                return w._replace(led=end(led2, True), stores=put(w.stores, slot, store)), ""
            store = due(store, 99)  # the note stays until the person has said --changed
        if store.fence is None:
            return w, REFUSED
        if store.fence.look:
            r = life.given[last]
            store = store._replace(
                fence=Fence(last, r[4], led2.gen, True, marks, store.newest, covered.birth if covered else 0, r[2])
            )
        store = store._replace(fence=store.fence._replace(mark=max(marks, led.marks[slot]), imp=store.newest))
        w = w._replace(led=end(led2, True, found=first - 1), stores=put(w.stores, slot, store))
        truth = self.recounted(w, slot)
        if any(at >= loss.txid and first <= loss.txid for loss in life.losses for _, at in life.changes):
            # A person has changed something since the loss that is healed, and says whether that made up for it.
            truth = frozenset(i for i in truth if i[0] != "h") | {i for i in store.items if i[0] == "h"}
        w = w._replace(truth=put(w.truth, slot, truth))
        return w, (WRONG if w.stores[slot].items != truth else "")

    def recounted(self, w: World, slot: int) -> Items:
        """What counts by bindings, once losses are made good."""
        life = self.true.life(w.led, slot)
        items, gone = set(), set()
        for t, (_, kind, repl, _, _) in life.given.items():
            if life.held(t) is not True and t > life.rebuilt:
                continue
            if kind == "c":
                items.add(("t", t))
                gone.add(("t", repl)) if repl else None
        if life.rebuilt:
            items |= {i for i in w.truth[slot] if i[0] == "t" and i[1] <= life.rebuilt}
        items = (items | {i for i in w.truth[slot] if i[0] == "h"}) - gone
        return frozenset(items)

    def fits(self, life: Life, store: Store, newest: int, gen: int) -> int | None:
        """Do the values add up to some prefix of the changes? None: no, or nothing says so."""
        if not self.sums:
            return None
        base = life.expected(newest, gen)
        if base is None:
            return None
        return next(
            (k for k in range(len(life.changes) + 1) if self.total(store.items) == self.sum_of(life, base, k)), None
        )

    def sum_of(self, life: Life, base: Sequence[int], k: int) -> int:
        items = {("t", t) for t in base if life.given[t][1] == "c"} - {
            ("t", life.given[t][2]) for t in base if life.given[t][1] == "c" and life.given[t][2]
        }
        return self.total(items | {("h", n) for n, _ in life.changes[:k]})

    def pending(
        self, life: Life, store: Store, fence: Fence | None, first: int, nothing: bool = False
    ) -> tuple[str | None, list[tuple[int, int]]]:
        """How the missing changes are known ("told": proven missing, "ask": the person looks), and which ones."""
        if not life.changes:
            return None, []
        n = len(life.changes)
        if nothing:
            return "told", list(life.changes)
        sure = (
            life.sure(first - 1, fence.mark if fence is not None and self.rule("mark") else 0)
            if self.rule("sure")
            else 0
        )
        sure = min(sure, n)
        if self.rule("sure") is False and self.rule("ask"):
            pass
        fit = [n]
        base = life.expected(first - 1, fence.gen if fence is not None else 99)
        if self.sums and base is not None:
            clean = self.undone(0, store, first) if store.newest[0] == first else store
            fit = [k for k in range(sure, n + 1) if self.total(clean.items) == self.sum_of(life, base, k)]
            if not fit:
                return "wrong", []
            if len(fit) == 1:
                return "told", list(life.changes[fit[0] :])
        else:
            fit = list(range(sure, n + 1))
        if not self.rule("ask"):
            return "told", list(life.changes[fit[0] :])  # today: the smallest number that fits
        missing = [c for c in life.changes[fit[0] :] if not has(c[0], store.items)]
        return "ask", missing

    def events(self, w: World, family: Sequence[str]) -> Iterator[tuple[str, Step]]:
        led = w.led
        S = self.slots(led)
        yield "commit", self.commit(w, None, None)
        if "kill" in family:
            for die in (1, 2, 3):
                yield f"commit dies {die}", self.commit(w, None, die)
        if "restate" in family:
            for c in range(1, led.cur):
                yield f"restate {c}", self.commit(w, c, None)
                if "kill" in family:
                    for die in (0, 2, 3):
                        yield f"restate {c} dies {die}", self.commit(w, c, die)
        if "skip" in family:
            yield "skip", self.skip(w)
        if "backup" in family and w.restored < 2:
            for which, ids in (("V", [0]), ("T", [1]), ("VT", [0, 1])):
                if which in family:
                    saved = w.saved
                    for i in ids:
                        saved = put(saved, i, w.stores[i])
                    if saved != w.saved:
                        yield f"backup {which}", (w._replace(saved=saved), "")
        for which in "V", "T", "VT", "v":
            if which in family or (which == "VT" and "VT" in family):
                yield f"restore {which}", self.restore(w, which)
        if "hand" in family:
            yield "edit", self.edit(w)
            yield "accept", self.accept(w)
        for i in S:
            if "roll" in family:
                yield f"roll {i}", self.roll(w, i, None)
                for die in (0, 1, 2) if "kill" in family or "v" in family else ():
                    yield f"roll {i} dies {die}", self.roll(w, i, die)
            if "loss" in family:
                yield f"state-lost {i}", self.loss(w, i)
            if "lose" in family:
                yield f"lose {i} whole", self.lose(w, i)
        if "names" in family:
            yield "rename", self.rename(w)
            yield "reuse", self.reuse(w)
            yield "forget", self.forget(w)
            yield "back", self.back(w)
        if "ledger" in family:
            yield "ledger lost", self.rebuild(w)

    def stuck(self, w: World) -> bool:
        """No remedy leads on: roll forward, then --state-lost of all that are behind, commit or skip."""
        if w.edit:
            return False
        self.attempts = 9
        try:
            return self._stuck(w)
        finally:
            self.attempts = 3

    def _stuck(self, w: World) -> bool:
        seen, todo = {w}, deque([(w, 0)])
        while todo:
            x, depth = todo.popleft()
            for _, (y, _) in self.remedies(x):
                if y is None:
                    continue
                if y.led.cur > w.led.cur:
                    return False
                if y not in seen and depth < 6:
                    seen.add(y)
                    todo.append((y, depth + 1))
        return w.led.cur <= MOST

    def remedies(self, w: World) -> Iterator[tuple[str, Step]]:
        yield "commit", self.commit(w, None, None)
        yield "skip", self.skip(w)
        for i in self.slots(w.led):
            yield "roll", self.roll(w, i, None)
            if not self.no_loss:
                yield "loss", self.loss(w, i)
