"""The root of all errors, and errors of settings, blocks, sources and staged output."""

from __future__ import annotations

import re
import shlex
from typing import Any, ClassVar


def _rebuild(cls: type[TxError], fields: dict[str, Any]) -> TxError:
    return cls(**fields)


class TxError(Exception):
    """Root of every error of this package.

    :param fields: the values named in `template`, kept as attributes.
    :cvar for_good: whether only a person can help: a replay of the transaction would be refused alike.
    """

    template: ClassVar[str] = "{message}"
    for_good: ClassVar[bool] = False

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)
        super().__init__(self._worded(self.template))

    @property
    def advice(self) -> str | None:
        """What to do, as the text says after its first sentence; None: the text is one sentence."""
        return self._worded(self.template.partition(". ")[2]) or None

    def _worded(self, template: str) -> str:
        return typed(template.format(**self.fields), str(self.fields.get("topology") or ""))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, (type(self), self.fields)


_VALUED = "conn-id|dag-id|from|root|state|state-lost|to"


def typed(text: str, topology: str) -> str:
    """Write the commands of a text as a shell takes them, where they name this topology.

    A name may have spaces, quotes or a dollar sign. Before a name with a dash at its beginning, `--` ends the options.
    """
    quoted = shlex.quote(topology)
    is_option = topology.startswith("-")
    if not topology or (quoted == topology and not is_option):
        return text
    command = rf"(airflow tx (?:state )?[a-z-]+)( OLD|) {re.escape(topology)}(?=[\s.,;:)`]|$)"
    if not is_option:
        return re.sub(command, lambda found: f"{found[1]}{found[2]} {quoted}", text, flags=re.M)
    options = rf"((?: --(?:{_VALUED}) [^\s;,]*[^\s;,.:]| --[a-z-]+(?: TEXT| \.\.\.)?)*)"
    command = rf"{command}((?: (?:\d+|[A-Z]+|\.\.\.)(?![^\s.,;:)]))*){options}"
    moved = r"\1\4 --\2 {}\3".format(quoted.replace("\\", r"\\"))
    return re.sub(command, moved, text, flags=re.M)


def shortened_reason(text: str, most: int) -> str:
    """Shorten a text to so many characters between two words: an error says first what failed, and last what to do."""
    if len(text) <= most:
        return text
    gap = " ... "
    begin = text[: (most - len(gap)) // 3]
    end = text[len(begin) + len(gap) - most :]
    return f"{begin.rpartition(' ')[0] or begin}{gap}{end.partition(' ')[2] or end}"


# What colours a text in a terminal, and every other control character but the end of a line.
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Take out of a text what a terminal would obey: colours, and control characters, which become spaces."""
    return _CONTROLS.sub(" ", _COLOURS.sub("", text))


class ConfigError(TxError):
    """A setting that cannot be used."""

    template = "{option} = {value!r} cannot be used. {remedy}"
    for_good = True


class TransactionDefinitionError(TxError):
    """A `Transaction` block that cannot work; raised while the DAG file is parsed."""

    template = "Transaction {topology!r} refused: {problem}. {remedy}"


class FailedBatch(TxError):
    """Raise it in a task to fail this batch on purpose: only this transaction is replayed (Storm's FailedException).

    :param message: why; it is kept in the ledger.
    """

    def __init__(self, message: str = "the batch was failed on purpose", **fields: Any) -> None:
        super().__init__(message=message, **fields)


class SourceError(TxError):
    """A source that cannot give the rows of a batch."""

    template = "Source {source} refused: {problem}. {remedy}"


class RowsRefused(SourceError):
    """Rows of a batch with a value that no reader takes: a replay would read the same."""

    for_good = True


class OtherSource(SourceError):
    """A position, metadata or key in the ledger that is none of this source."""

    template = (
        "Source {source} refused: {problem}. The topology had another source before: give it another name, "
        "Transaction(topology=...)."
    )


class AheadOfOrder(TxError):
    """An interval whose turn to get a txid has not come: its run waits.

    :param after: the date to which the order must have come; `missing`: the date of the next interval.
    """

    template = "The interval {interval} waits: the one that begins at {missing} comes before it, and has no txid yet."


class PartitionUnavailable(SourceError):
    """A partition of a source that cannot be reached now. An opaque source is used without it, others stop."""

    template = "Partition {partition!r} of source {source} cannot be reached: {reason}."


class StagingError(TxError):
    """Staged output that is missing, incomplete or of another attempt."""

    template = "Output {output!r} of task {task} in transaction {txid}.{attempt} refused: {problem}. {remedy}"


class StagingUnavailable(StagingError):
    """A file that could not be staged; no reader sees a part of it."""

    template = "{uri} cannot be written: {reason}. No row of it counts. Make room or give access, then clear the task."


class StagingNotRemoved(StagingError):
    """Staged output of a topology that is reset or deleted, and is still there."""

    template = (
        "{uri} cannot be removed. The next topology of this name would take it for its own; give access, then repeat "
        "the command."
    )


class StagingUnreachable(StagingError):
    """A store of files that does not answer now."""

    template = "{uri} cannot be reached: {reason}. Nothing was changed; the task can be tried again once it answers."


class JournalError(TxError):
    """An entry of the journal that cannot be used."""

    template = "Entry {entry} of the journal cannot be used: {problem}. {remedy}"
    for_good = True


class EntryMissing(JournalError):
    """A file of an entry that is not there."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} is not there. Restore that file from a backup of the "
        "staging area; without it the transaction cannot be restated."
    )


class EntryDiffers(JournalError):
    """A file of an entry whose content is not what was written."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} has the sha256 {found} instead of {expected}. Restore "
        "that file from a backup of the staging area; without it the transaction cannot be restated."
    )
