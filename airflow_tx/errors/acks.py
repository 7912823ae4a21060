"""Errors of message trees: references, messages, and the ackers that keep the trees."""

from __future__ import annotations

from airflow_tx.errors.root import TxError


class MessageError(TxError):
    """A message that is not taken, emitted, acked or failed."""


class NotAReference(MessageError):
    """A text that names no message."""

    template = "{text!r} is no reference to a message: {problem}. Pass the text that emit() gave, whole and unchanged."


class ForeignMessage(MessageError):
    """A message of another topology than the collector works for."""

    template = (
        "Message {message} of topology {found!r} refused: this collector works for topology {expected!r}. "
        "Let it read another queue, or leave out Collector(topology=...)."
    )


class StaleMessage(MessageError):
    """A message of an attempt that was replayed."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: attempt {newest} is the newest. "
        "Drop the message: the newest attempt emits its own."
    )


class UnknownMessage(MessageError):
    """A message whose tree no acker has."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: {problem}. Drop the message; it is "
        "counted in no tree."
    )


class MessageDone(MessageError):
    """A message that was acked or failed, and is used again."""

    template = (
        "{step} of message {message} refused: it is {done} already. Emit what is anchored to it before its ack, "
        "and ack it once."
    )


class MixedAnchors(MessageError):
    """Anchors of different attempts."""

    template = (
        "A message cannot be anchored to messages of {first} and of {second}: it belongs to one attempt of one "
        "transaction. Emit one message for each."
    )


class EmittedBefore(MessageError):
    """A task that emits messages which an earlier try of it has emitted in the same attempt."""

    template = (
        "Task {task} has emitted messages of transaction {txid}.{attempt} of topology {topology!r} in an earlier try, "
        "and workers may have taken them. Clear `begin` or the whole run: its next attempt emits them again."
    )


class AckersUnavailable(MessageError):
    """The store of the ackers does not answer."""

    template = (
        "The ackers at {where} cannot be reached: {reason}. Start their store, or correct acker_store=; until they "
        "answer no transaction with messages is committed."
    )


class AckersRefused(MessageError):
    """The store of the ackers does not take what it is sent."""

    template = "The ackers at {where} refused: {problem}. {remedy}"


class AckersBehind(MessageError):
    """The store of the ackers has lost something that it had taken."""

    template = (
        "The ackers of transaction {txid}.{attempt} of topology {topology!r} hold part {found} of a worker's messages, "
        "and part {expected} was taken: their store went back, or was emptied. Clear `begin` or the whole run."
    )
