"""Pure functions that compare ledger, receipts and fences with each other. Source: docs/protocol.md §10."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_tx.base.remedy import Command
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.audit.chain import (
    Chain,
    Decisive,
    HeldFence,
    LedgerEvidence,
    StateEvidence,
    in_short,
)
from airflow_tx.ledger.batch import WHOLE
from airflow_tx.ledger.json_text import as_plain, digest, digest_of, is_shortened, replace
from airflow_tx.ledger.life import (
    ACCEPT_LOSS,
    BACK,
    CHANGE,
    LEDGER_LOST,
    ROLL_FORWARD,
    STATE_LOST,
    Life,
    all_taken_back,
    name_now,
)
from airflow_tx.ledger.receipt import Receipt, Written, restated
from airflow_tx.ledger.records import EndLine, Phase, Skipped, TransactionRecord

# --- decisive -----------------------------------------------------------------------------------------------------
# Compare the records that decide later transactions with the receipts and with each other. Source:
# docs/protocol.md §10.
#
# These records are the topology record, the counters, and the records of open transactions, skipped
# rows and bindings.


def compare_decisive(chain: Chain, states: Sequence[StateEvidence], *, whole: bool) -> None:
    """Compare the records that decide later transactions with the receipts.

    :param whole: whether all final transactions are compared. Only then can the topology record and open transactions
        be compared.
    """
    now = chain.ledger.decisive
    if now is None:
        return
    _compare_skipped(chain, now)
    _compare_bindings(chain, now)
    _compare_book(chain)
    if whole:
        _compare_open(chain, now)
        chain.findings += [f"ledger: {each}" for each in _topology_findings(chain)]
        _compare_states(chain, {state.name: state for state in states})


_SENTENCES = {
    "generation": "its generation is {}, but after its repairs it must be {}",
    "skips": "it lists the skips {}, but the open transactions name the skips {}",
    "run_id": "its kept rows are of run {}, but its receipt is of run {}",
    "rows": "its kept rows are {}, but its receipt names the rows {}",
}
"""The finding for a record's field if receipts, repairs and open transactions imply a different value."""
_OF_SKIPPED = "its kept rows have {name} {}, but its receipt has {}"
"""The finding for any other field of a skipped transaction."""


def _apart(said: Any, wanted: Any, *names: str) -> Iterator[str]:
    """Yield a finding for each field in which a record differs from the expected record."""
    for name in names:
        found = [as_plain(getattr(each, name)) for each in (said, wanted)]
        if len(set(map(digest_of, found))) > 1:
            yield _SENTENCES.get(name, _OF_SKIPPED).format(*map(in_short, found), name=name)


# --- the topology record ------------------------------------------------------------------------------------------


def _topology_findings(chain: Chain) -> Iterator[str]:
    topology = chain.ledger.topology
    rolling = topology.rolling
    left = chain.expected.generation if rolling is None else rolling.generation
    yield from _apart(topology, replace(chain.expected, generation=left), "generation", "skips")
    yield from _rebuilt_findings(chain)
    yield from _loss_findings(chain)
    paths = Paths("", chain.ledger.name)
    acks = paths.all_acks.removeprefix(f"{paths.base}/")
    for each in topology.garbage:
        if not each.startswith(f"{acks}/"):
            yield f"it notes that {each} must be deleted, but that record is still needed"


def _rebuilt_findings(chain: Chain) -> Iterator[str]:
    """Compare the transaction after which the ledger was rebuilt with the generations in the receipts around it."""
    rebuilt = chain.ledger.topology.rebuilt
    current = chain.ledger.current
    generation = max(
        (each.generation for each in chain.ledger.life if each.what == LEDGER_LOST), default=None
    )
    if generation is None:
        if rebuilt:
            yield f"it says that it was rebuilt after transaction {rebuilt}, but no repair has rebuilt it"
        return
    every = [chain.receipts, *chain.held.values()]
    generations = {
        txid: receipt.generation
        for found in every
        for txid, receipt in found.items()
        if txid < current
    }
    before = max((txid for txid, each in generations.items() if each < generation), default=0)
    after = min((txid for txid, each in generations.items() if each >= generation), default=current)
    exact = before + 1 == after
    if rebuilt >= after or rebuilt < before or (exact and rebuilt != before):
        yield f"it says that it was rebuilt after transaction {rebuilt}, and the receipts say after {before}"


def _loss_findings(chain: Chain) -> Iterator[str]:
    """Compare the accepted losses in the topology record with the losses that follow the source's position."""
    topology = chain.ledger.topology
    life = chain.ledger.life
    known = {each.number for each in chain.ledger.repairs if each.what == ACCEPT_LOSS}
    for number in topology.losses:
        if number not in known:
            yield f"it lists repair {number} as an accepted loss, but that repair accepted no loss"
    asked_again = max((each.number for each in life if each.what in (LEDGER_LOST, BACK)), default=0)
    accepted = [each for each in life if each.what == ACCEPT_LOSS and each.number > asked_again]
    places = chain.ledger.position
    places = places if topology.partitioned and isinstance(places, dict) else {WHOLE: places}
    losses = {
        (loss.partition, digest(loss.position)): loss for each in accepted for loss in each.losses
    }
    ahead = set[tuple[str, str]]()
    for partition, place in places.items():
        at = (partition, digest(place))
        while at in losses and at not in ahead:
            ahead.add(at)
            at = (partition, digest(losses[at].resume_at))
    for each in accepted:
        is_ahead = any((loss.partition, digest(loss.position)) in ahead for loss in each.losses)
        if is_ahead and each.number not in topology.losses:
            yield f"it lacks accepted loss {each.number}, which the source reaches next"


def _compare_states(chain: Chain, states: Mapping[str, StateEvidence]) -> None:
    """Compare the topology record with the receipts: the last transaction of each state, and its birth."""
    topology = chain.ledger.topology
    for name in sorted({*topology.states, *topology.births}):
        last = topology.states.get(name, 0)
        receipt = chain.receipts.get(last)
        fence = states[name].fence if name in states else None
        births = {receipt.birth} if receipt is not None else set[str]()
        births |= (
            {fence.token.birth}
            if fence is not None and (births or fence.token.txid == last)
            else set()
        )
        said = topology.births.get(name, "")
        if births and said not in births:
            chain.findings.append(
                f"state {name}: the ledger says birth {said or 'none'} of transaction {last}, and it was "
                f"{' or '.join(sorted(births))}"
            )
        granted = topology.grants.get(name)
        if granted and receipt is not None and granted != [receipt.attempt, receipt.epoch]:
            told = "attempt {} and epoch {}"
            chain.findings.append(
                f"state {name}: the ledger says {told.format(*granted)} of transaction {last}, and it was "
                f"{told.format(receipt.attempt, receipt.epoch)}"
            )
    for name in sorted(chain.expected.states.keys() - topology.states.keys()):
        last = chain.expected.states[name]
        if last > topology.rebuilt and not _is_lost(chain, name, chain.receipts[last]):
            said = f"transaction {last} was committed to it, but the ledger does not name it"
            chain.findings.append(f"state {name}: {said}")


def _is_lost(chain: Chain, state: str, receipt: Receipt) -> bool:
    """Return whether a state's content was accepted by hand after the transaction of a receipt.

    :param state: current name of the state.
    """
    repairs = chain.ledger.repairs
    return any(
        each.what == STATE_LOST
        and each.generation > receipt.generation
        and name_now(repairs, each.change["state"], each.change["txid"] - 1) == state
        for each in repairs
    )


# --- the book of ends ---------------------------------------------------------------------------------------------


def _compare_book(chain: Chain) -> None:
    """Compare each line of the book with the line that the receipts imply."""
    ledger = chain.ledger
    begins = ledger.topology.book
    gone = all_taken_back(ledger.life)
    for txid in range(max(begins, chain.first), chain.last + 1) if begins else ():
        line = ledger.book.get(txid)
        if line is None:
            chain.find(txid, f"it is final, and has no line in the book, which begins at {begins}")
        elif txid in chain.expected.lines and txid not in gone:
            for name, said, kept in _line_findings(chain, line, begins):
                told = f"the book says {name} {in_short(said)}, the receipts say {in_short(kept)}"
                chain.find(txid, told)


def _line_findings(chain: Chain, line: EndLine, begins: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields in which a line of the book differs from the expected line, with both values.

    :param begins: the first transaction with a line. If a chain began earlier, its line may name any earlier
        transaction.
    """
    wanted = chain.expected.lines[line.txid]
    receipt = chain.receipts[line.txid]
    # If some of the states' receipts are missing, the row count is incomplete.
    partly = {"rows"} if line.txid in chain.pieced else set()
    before = (
        {"first"}
        if 0 < min(line.first, wanted.first) <= max(line.first, wanted.first) < begins
        else set()
    )
    for name in sorted({"birth", "key", "outcome", "rows", "first", "end"} - partly - before):
        said, kept = (as_plain(getattr(each, name)) for each in (line, wanted))
        if said != kept:
            yield name, said, kept
    if line.taken is not None and not is_shortened(receipt.metadata):
        kept = receipt.metadata or {}
        said = as_plain(replace(line.taken, again=False))
        if any(said.get(name) != kept.get(name) for name in ("first", "last", "ends")):
            yield "taken", said, kept


# --- open transactions --------------------------------------------------------------------------------------------


def _compare_open(chain: Chain, now: Decisive) -> None:
    current = chain.ledger.current
    for txid in sorted({*now.opened, *range(current, now.allocated + 1)}):
        record = now.opened.get(txid)
        if record is None:
            problem: str | None = (
                f"the ledger has allocated all transactions up to {now.allocated}, but this one has no record"
            )
        elif not current <= txid <= now.allocated:
            problem = f"it is open, but only transactions {current} to {now.allocated} can be open"
        else:
            problem = next(_open_findings(chain, now, txid, record), None)
        if problem is not None:
            chain.findings.append(f"transaction {txid}: {problem}")
    if now.allocated < current - 1:
        chain.findings.append(
            f"ledger: it has allocated {now.allocated} transactions, and it is the turn of {current}"
        )


def _open_findings(
    chain: Chain, now: Decisive, txid: int, record: TransactionRecord
) -> Iterator[str]:
    meta = now.metas.get(txid)
    if meta is None:
        yield "it is open, and its rows are missing"
        return
    if digest(meta.rows) != record.rows_digest:
        yield f"its rows are {in_short(meta.rows)}, but its record has the digest of other rows"
    if digest(meta.position) != record.ended:
        yield f"it ends at {in_short(meta.position)}, but its record has the digest of another position"
    if record.phase is Phase.COMMITTING and record.receipt is not None:
        said = {
            name: getattr(record.receipt, name)
            for name in ("attempt", "epoch", "nonce", "birth", "key", "run_id")
        }
        if said != {name: getattr(record, name) for name in said}:
            yield "its prepared receipt contradicts its record"
        if digest_of(record.receipt.metadata) != digest(meta.rows):
            yield "its prepared receipt names other rows than its batch"
        if record.receipt.previous != chain.ledger.topology.receipt:
            yield "its prepared receipt does not follow the last receipt"


# --- skipped transactions -----------------------------------------------------------------------------------------


def _compare_skipped(chain: Chain, now: Decisive) -> None:
    """Compare the rows that the ledger keeps for skipped transactions with the receipts."""
    ledger = chain.ledger
    for txid in sorted(chain.expected.skipped.keys() - now.skipped.keys()):
        if txid < ledger.current:
            chain.find(txid, "it was skipped, but its rows are not kept")
    for txid, skipped in sorted(now.skipped.items()):
        if ledger.current <= txid < max(ledger.latest, ledger.current):
            continue  # the transaction was skipped after the ledger was read
        for problem in _skipped_findings(chain, now, txid, skipped):
            chain.find(txid, problem)
        if txid >= ledger.current:
            chain.findings.append(
                f"transaction {txid}: it is kept as skipped, but transaction {ledger.current} has the turn"
            )


def _skipped_findings(chain: Chain, now: Decisive, txid: int, skipped: Skipped) -> Iterator[str]:
    receipt = chain.receipts.get(txid)
    wanted = chain.expected.skipped.get(txid)
    again = skipped.readmitted_as
    history = chain.ledger.histories.get(txid)
    noted = [history and history.final.readmitted_as, wanted and wanted.readmitted_as]
    for known in sorted({each or 0 for each in noted} - {again, 0}):
        kept = (
            "can be re-admitted again"
            if again is None
            else f"were re-admitted as transaction {again}"
        )
        yield f"it was re-admitted as transaction {known}, but the ledger says that its rows {kept}"
    if (
        again is not None
        and again <= now.allocated
        and _key_of(chain, now, again) not in (skipped.key, None)
    ):
        yield f"the ledger says that its rows are in transaction {again}, but that one belongs to another run"
    if again is not None and again > now.latest:
        yield f"the ledger says that its rows are in transaction {again}, which was never allocated"
    if receipt is None:
        return
    if wanted is None:
        yield "it was committed, but the ledger keeps it as skipped"
        return
    yield from _apart(skipped, wanted, "run_id", "key", "skip", "replaces")
    # When a rebuild undoes a readmission, it keeps the rows of the new transaction. A replay may
    # have changed these rows.
    taken_back = any(
        each.what == LEDGER_LOST and each.generation > receipt.generation
        for each in chain.ledger.repairs
    )
    if again is None and wanted.readmitted_as is None and not taken_back:
        yield from _apart(skipped, wanted, "rows")


def _key_of(chain: Chain, now: Decisive, txid: int) -> str | None:
    """Return the run key of a transaction. Return None if it is unknown."""
    record = now.opened.get(txid)
    receipt = chain.receipts.get(txid)
    if record is not None:
        return record.key
    return None if receipt is None else receipt.key


# --- bindings -----------------------------------------------------------------------------------------------------


def _compare_bindings(chain: Chain, now: Decisive) -> None:
    """Compare the binding of each run with the run key of its transaction."""
    rebuilt = chain.ledger.topology.rebuilt
    counting = {
        key: binding
        for key, binding in chain.expected.bindings.items()
        if rebuilt < binding.txid <= now.allocated
    }
    for key, binding in counting.items():
        txid = binding.txid
        bound = now.bindings.get(key)
        if bound is None:
            _found(
                chain,
                now,
                txid,
                f"its run {key!r} is not bound to it, so a clear would count the run again",
            )
        elif bound != txid and not now.allocated < bound <= now.latest:
            _found(chain, now, txid, f"its run {key!r} is bound to transaction {bound}")
        elif bound == txid and txid not in now.opened:
            named = now.entries.get(key, "")
            if named != binding.entry:
                kept = binding.entry or "none"
                text = (
                    f"its run {key!r} names the journal entry {named or 'none'}, its receipt {kept}"
                )
                chain.find(txid, text)
    _compare_others(chain, now, counting)


def _compare_others(chain: Chain, now: Decisive, known: Collection[str]) -> None:
    """Compare the bindings of runs that have no receipt. A binding decides whether the rows of a run count.

    :param known: the run keys with a receipt.
    """
    first = chain.ledger.topology.rebuilt + 1
    bound = defaultdict[int, list[str]](list)
    for key, txid in sorted(now.bindings.items()):
        if key not in known and not 0 < txid <= now.latest:
            chain.findings.append(
                f"run {key!r}: it is bound to transaction {txid}, which was never allocated"
            )
        elif key not in known and first <= txid <= now.allocated:
            bound[txid].append(key)
    for txid, keys in sorted(bound.items()):
        own = _key_of(chain, now, txid)
        for key in keys if own is not None else keys[1:]:
            _found(
                chain,
                now,
                txid,
                f"run {key!r} is bound to it, but it belongs to run {(own or keys[0])!r}, so {key!r} counts nothing",
            )


def _found(chain: Chain, now: Decisive, txid: int, text: str) -> None:
    if txid in now.opened:
        chain.findings.append(f"transaction {txid}: {text}")
    else:
        chain.find(txid, text)


# --- verification -------------------------------------------------------------------------------------------------


"""Repairs that leave the expected totals of states known."""


@dataclass(frozen=True)
class Verified:
    """The result of a verification.

    :param first: the first transaction of the chain without a gap; None if there is no receipt.
    :param last: the last final transaction that was compared.
    :param findings: the contradictions, one line each.
    :param notes: notes about skips, losses, repairs, and comparisons that were not possible.
    :param given_up: the transactions that a state lacks since their loss was accepted, one line for each loss.
    """

    first: int | None
    last: int
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    given_up: tuple[str, ...] = ()


def verified(
    ledger: LedgerEvidence,
    states: Sequence[StateEvidence],
    *,
    first: int = 1,
    last: int | None = None,
) -> Verified:
    """Compare the ledger and the states for the transactions from `first` to `last`.

    :param last: the last transaction to compare; None means the last final one.
    """
    final = ledger.current - 1
    end = final if last is None else min(last, final)
    chain = Chain(ledger, states, first, end)
    chain.follow()
    chain.positions()
    for state in states:
        if state.receipts is not None:
            _compare_receipts(chain, state)
    if end == final:
        _compare_ends(chain)
        for state in states:
            _compare_fence(chain, state)
            _compare_totals(chain, state)
            _compare_rows(chain, state)
            _compare_holes(chain, state)
    compare_decisive(chain, states, whole=end == final)
    chain.tell()
    vouched = None if chain.begins is None else max(chain.begins, first)
    lost = [text for state in states for text in _given_up(chain, state)]
    return Verified(vouched, end, tuple(chain.findings), tuple(chain.notes), tuple(lost))


def _given_up(chain: Chain, state: StateEvidence) -> Iterator[str]:
    """Describe the transactions that a state lacks since their loss was accepted with `--state-lost`."""
    life = chain.life(state.name)
    repairs = {each.number: each for each in chain.ledger.life}
    for loss in life.losses:
        gap = range(max(loss.found or 0, chain.first - 1) + 1, loss.txid)
        held = chain.held[state.name]
        exact = state.receipts is not None or loss.found is not None
        lost = [txid for txid in gap if txid in life.given and txid not in held]
        lost = sorted({*lost, *(_holes(chain, state) if loss.number > life.passed else ())})
        if lost:
            repair = repairs[loss.number]
            span = f"transactions {lost[0]} to {lost[-1]}"
            said = "were given up" if exact else "may have been given up"
            by = f"repair {repair.number} ({repair.who}, {repair.when}: {repair.why})"
            yield f"state {state.name}: {span} {said} by {by}"


def _compare_receipts(chain: Chain, state: StateEvidence) -> None:
    """Compare the receipts in a state with the receipts in the ledger."""
    held = chain.held[state.name]
    life = chain.life(state.name)
    gone = list[int]()
    forgets = state.receipts_kept is not None and len(held) >= state.receipts_kept
    since = min(held, default=chain.last + 1)
    for txid in range(max(chain.first, chain.ledger.oldest), chain.last + 1):
        own = held.get(txid)
        receipt = chain.receipts.get(txid)
        if chain.changed & {("", txid), (state.name, txid)}:
            continue
        if own is not None and life.name_at(txid) is None:
            continue  # another state had this name or these tables at that time
        if own is not None:
            if receipt is None:
                chain.find(txid, f"state {state.name} has a receipt of it, but the ledger has none")
            else:
                _compare_one(chain, life, own, receipt)
        elif txid in life.given:
            if (forgets and txid < since) or life.is_accepted(txid):
                gone.append(txid)
            else:
                chain.find(txid, f"its receipt in state {state.name} is missing")
    if gone:
        why = f"transactions {gone[0]} to {gone[-1]}: state {state.name} no longer keeps their receipts"
        chain.notes.append(f"{why}; only the ledger has them")


def _compare_one(chain: Chain, life: Life, own: Receipt, receipt: Receipt) -> None:
    # After a roll forward, the receipt in the state has the rows under a later name of the state.
    given = life.given.get(receipt.txid)
    # A restatement that skips a state leaves a receipt without rows in the state.
    written = {} if given is None else dict.fromkeys(own.written, replace(given, left=False))
    # A roll forward that skips a transaction leaves a receipt without rows in the table.
    of_hole = receipt.txid in life.holes
    different = own.differences(replace(receipt, written=own.written if of_hole else written))
    if different:
        names = ", ".join(different)
        chain.find(
            receipt.txid, f"its receipts in state {life.state} and in the ledger differ in {names}"
        )


def _compare_ends(chain: Chain) -> None:
    """Compare the current position of the source, and the last transaction of each state, with the receipts."""
    ledger = chain.ledger
    last = chain.receipts.get(ledger.current - 1)
    if last is not None:
        for where, one, two in chain.apart(last.after, ledger.position):
            ended = f"transaction {last.txid} ended at {in_short(one)}"
            chain.findings.append(f"ledger: {where}it continues at {in_short(two)}, and {ended}")
    for name, txid in ledger.topology.states.items():
        own = chain.expected.states.get(name, txid)
        if own != txid and txid > ledger.topology.rebuilt:
            said = f"the ledger says that transaction {txid} was its last one, the receipts {own}"
            chain.findings.append(f"state {name}: {said}")


def _compare_fence(chain: Chain, state: StateEvidence) -> None:
    fence = state.fence
    topology = chain.ledger.topology
    where = f"state {state.name}:"
    last = topology.states.get(state.name)
    if fence is None:
        if state.receipts is None:
            chain.notes.append(
                f"{where} it keeps no fence and no receipts; only the ledger knows its commits"
            )
        elif last is not None:
            chain.findings.append(
                f"{where} it has no fence, but transaction {last} was committed to it"
            )
        return
    txid = fence.token.txid
    if fence.incarnation != topology.incarnation:
        said = f"its fence is of ledger {fence.incarnation}, this is ledger {topology.incarnation}"
        chain.findings.append(f"{where} {said}")
    elif fence.token.is_look:
        is_known = topology.rolling is not None or last is None
        (chain.notes if is_known else chain.findings).append(
            _look_in_words(chain, state.name, fence)
        )
    elif last is not None and txid < last:
        chain.findings.append(
            f"{where} its fence says transaction {txid}, and {last} was committed to it"
        )
    elif txid == last and txid in chain.receipts:
        again = fence.token.nonce in _nonces(chain, state.name)
        for name, said, kept in _fence_apart(fence, chain.receipts[txid], again=again):
            of = f"the receipt of transaction {txid} {in_short(kept)}"
            chain.findings.append(f"{where} its fence says {name} {in_short(said)}, {of}")
    elif txid > max(chain.ledger.current, chain.ledger.latest):
        said = f"its fence says transaction {txid}, and it is the turn of {chain.ledger.current}"
        chain.findings.append(f"{where} {said}")
    _compare_change(chain, state.name, fence)


def _compare_change(chain: Chain, state: str, fence: HeldFence) -> None:
    """Compare the newest accepted change in the topology record with the one in the fence."""
    change = chain.ledger.topology.accepted.get(state, {}).get(CHANGE, 0)
    if fence.change < change:
        said = f"its fence does not name the change that repair {change} accepted"
        chain.findings.append(f"state {state}: {said}")


def _look_in_words(chain: Chain, state: str, fence: HeldFence) -> str:
    """Describe a fence that an unfinished roll forward raised in order to read the values."""
    before = fence.covered
    found = "no fence" if before is None else f"the fence of transaction {before.token.txid}"
    again = Command("repair", chain.ledger.name, options=("--roll-forward", state))
    return (
        f"state {state}: a roll forward has replaced {found} to read the values, and has not ended. "
        f"If that command was killed, repeat it: {again}"
    )


@dataclass(frozen=True)
class ColumnTotal:
    """The total of a value column, and the total that receipts and accepted changes imply.

    :param unknown: number of receipts without a total of this column.
    """

    column: str
    total: int
    expected: int
    unknown: int = 0

    @property
    def is_changed(self) -> bool:
        return not self.unknown and self.total != self.expected

    @property
    def told(self) -> str:
        return f"column {self.column} adds up to {self.total}, and its receipts to {self.expected}"


@dataclass(frozen=True)
class RowCount:
    """A transaction's number of rows in a table, and the number that receipts and accepted changes imply."""

    txid: int
    rows: int
    expected: int

    @property
    def is_changed(self) -> bool:
        return self.rows != self.expected

    @property
    def told(self) -> str:
        return f"it has {self.rows} rows of transaction {self.txid} instead of {self.expected}"


_Compared = TypeVar("_Compared", ColumnTotal, RowCount)


def changed_values(
    ledger: LedgerEvidence, states: Sequence[StateEvidence], name: str
) -> Sequence[ColumnTotal | RowCount] | str:
    """Return the column totals or table row counts that receipts and accepted changes do not explain.

    :return: the differences, or a text that explains why they cannot be compared.
    """
    chain = Chain(ledger, states, 1, ledger.current - 1)
    chain.follow()
    state = next(each for each in states if each.name == name)
    compare = _column_totals if state.rows is None else _row_counts
    found: Sequence[ColumnTotal | RowCount] | str = compare(chain, state)
    return found if isinstance(found, str) else [each for each in found if each.is_changed]


def _compare_totals(chain: Chain, state: StateEvidence) -> None:
    """Compare the totals of value columns with the totals that the receipts imply."""
    if state.totals is None:
        return
    for one in _compared(chain, state.name, "values", _column_totals(chain, state)):
        if one.unknown:
            unknown = f"{one.unknown} of its receipts do not say how much was added to {one.column}"
            chain.notes.append(f"state {state.name}: {unknown}")
        elif one.is_changed:
            chain.findings.append(f"state {state.name}: its {one.told}")


def _compare_rows(chain: Chain, state: StateEvidence) -> None:
    """Compare each transaction's number of rows in a table with its receipt."""
    if state.rows is None:
        return
    for each in _compared(chain, state.name, "rows", _row_counts(chain, state)):
        if not each.is_changed:
            continue
        if chain.receipts.get(each.txid) is None:
            chain.findings.append(
                f"state {state.name}: it has {each.rows} rows of transaction {each.txid}, which has no receipt"
            )
        else:
            said = f"state {state.name} has {each.rows} rows of it instead of {each.expected}"
            chain.find(each.txid, said)


def _compare_holes(chain: Chain, state: StateEvidence) -> None:
    """Report transactions that a roll forward left out of a table, until their restatements are committed."""
    now = chain.ledger.decisive
    replaced = () if now is None else [each.replaces for each in now.opened.values()]
    wanted = {each.txid for each in replaced if each is not None}
    wanted |= set() if now is None else now.wanted
    for txid in _holes(chain, state):
        if chain.life(state.name).lacks(txid):
            again = Command("restate", chain.ledger.name, (str(txid),), ("--why", "TEXT"))
            told = "its restatement is requested" if txid in wanted else f"restate it: {again}"
            chain.findings.append(f"state {state.name}: transaction {txid} has no rows: {told}")


def _holes(chain: Chain, state: StateEvidence) -> list[int]:
    """Return the transactions that a roll forward left out of this table and that still count."""
    rows = state.rows or {}
    replaced = restated(chain.receipts)
    return [
        txid
        for txid in sorted(chain.life(state.name).holes)
        if txid not in replaced and not rows.get(txid)
    ]


def _compared(chain: Chain, state: str, what: str, found: list[_Compared] | str) -> list[_Compared]:
    """Return the differences. Add a note for each accepted change, or the reason why nothing was compared."""
    if isinstance(found, str):
        chain.notes.append(f"state {state}: its {what} were not compared: {found}")
        return []
    for each in chain.life(state).changes:
        chain.notes.append(f"state {each.told} ({each.who}, {each.when}: {each.why})")
    return found


def _unsettled(state: StateEvidence, last: int) -> str | None:
    """Explain from the fence why the values may differ from the values after transaction `last`.

    Return None if they do not.
    """
    fence = state.fence
    if fence is None or (fence.applied and fence.token.txid == last):
        return None
    behind = fence.applied and fence.token.txid < last
    return "it lacks transactions" if behind else "it was being written to"


def _row_counts(chain: Chain, state: StateEvidence) -> list[RowCount] | str:
    """Return the row counts of each transaction, or the reason why they cannot be compared."""
    assert state.rows is not None
    life = chain.life(state.name)
    written = {txid: part.keys for txid, part in life.given.items()}
    if why := _unsettled(state, max(written, default=0)):
        return why
    replaced = restated(chain.receipts)
    passed = _holes(chain, state)
    expected = {
        txid: 0 if txid in {*replaced, *passed} or not is_kept else rows
        for txid, rows in written.items()
        if (is_kept := life.kept(txid)) is not None
    }
    expected |= {txid: 0 for txid in _rows_of_none(chain, state) if txid not in written}
    for change in (each.change for each in life.changes):
        # A change may name a txid that was not allocated at that time, but now belongs to a
        # transaction.
        expected |= {
            int(txid): 0 if int(txid) in replaced else rows
            for txid, rows in change.get("rows", {}).items()
            if int(txid) <= change["txid"] or int(txid) not in written
        }
    return [RowCount(txid, state.rows.get(txid, 0), rows) for txid, rows in expected.items()]


def _rows_of_none(chain: Chain, state: StateEvidence) -> Iterator[int]:
    """Yield the txids of table rows whose transaction has no receipt.

    Transactions before the first receipt are left out.
    """
    begins = chain.ledger.current if chain.begins is None else chain.begins
    for txid in sorted(each for each in state.rows or {} if each is not None):
        if txid >= begins and txid >= chain.first and not chain.changed & {("", txid)}:
            yield txid


def _column_totals(chain: Chain, state: StateEvidence) -> list[ColumnTotal] | str:
    """Return the total and the expected total of each column, or the reason why they cannot be compared."""
    life = chain.life(state.name)
    last = max(life.given, default=0)
    if not state.totals:
        return "it has no column that can be added up"
    if state.fence is None and last:
        return "it has no fence, so a process may be writing to it"
    if why := _unsettled(state, last):
        return why
    held = life.expected(last)
    if held is None:
        return life.unknown(last)
    written = [life.given[txid] for txid in held]
    accepted = [each.change["columns"] for each in life.changes]
    return [_column_total(name, total, written, accepted) for name, total in state.totals.items()]


def _column_total(
    name: str,
    total: int,
    written: Sequence[Written],
    accepted: Sequence[Mapping[str, int]],
) -> ColumnTotal:
    parts = [each.sums.get(name) for each in written if each.keys > 0]
    expected = sum(part for part in parts if part is not None) + sum(
        each.get(name, 0) for each in accepted
    )
    return ColumnTotal(name, total, expected, parts.count(None))


def _nonces(chain: Chain, state: str) -> set[str]:
    """Return the nonces of the roll forwards that wrote to this state. Its fence may contain one of them."""
    rolling = chain.ledger.topology.rolling
    done = {
        nonce
        for each in chain.ledger.life
        if each.what == ROLL_FORWARD and state in each.change["states"]
        for nonce in each.change["nonces"]
    }
    return done if rolling is None else {*done, *rolling.nonces}


def _fence_apart(
    fence: HeldFence, receipt: Receipt, *, again: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields in which a fence and the receipt of its transaction differ, with both values.

    :param again: whether a roll forward rewrote the transaction, so that the fence and the receipt have different
        grants.
    """
    of_the_grant = () if again else ("generation", "nonce")
    for name in ("txid", "attempt", "epoch", "birth", *of_the_grant):
        if getattr(fence.token, name) != getattr(receipt, name):
            yield name, getattr(fence.token, name), getattr(receipt, name)
    if not fence.applied:
        yield "update complete:", False, True
    if fence.kept is None:
        yield "batch", fence.batch[:40], "rows and positions"
        return
    pairs = [("rows", receipt.metadata), ("position", receipt.after), ("prev", receipt.before)]
    for name, one in pairs:
        kept = getattr(fence.kept, name)
        if digest_of(kept) != digest_of(one):
            yield name, kept, one
