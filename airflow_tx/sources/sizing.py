"""How many rows a batch may have: fixed limits, or as many as the last transactions say that fit into a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import TypeAlias

from airflow_tx.errors import ConfigError

FIRST_ROWS = 100_000
"""The limit while nothing is measured."""
LEAST_ROWS = 1_000
"""A batch is not made smaller than this to meet a target: most of its time would be overhead."""
FIRST_FILES = 100
"""The limit of a source of files while nothing is measured."""
MOST_FILES = 2_000
"""Files of an adaptive batch: one record of the ledger holds their names and digests."""
GROWTH = 10
"""A batch has at most so many times the rows of the largest one that was measured."""
ROWS_SHARE = 0.2
"""At least this part of a target is given to rows, also where the overhead alone takes as long as the target."""
FADING = 0.7
"""The weight of a measurement, compared with the next one: a slow day is forgotten."""
UNEVEN = 0.5
"""A large batch may take longer than its rows say, by this part: it may not fit into memory."""

Measured: TypeAlias = Sequence[Sequence[float]]
"""Of committed transactions, the oldest first: rows, and seconds in process."""


@dataclass(frozen=True)
class Limit:
    """How large one batch may be.

    :param rows: at most so many rows; None: no limit.
    :param bytes: at most so many bytes, estimated where the source cannot know; None: no limit.
    :param reason: what sets `rows`, in words.
    """

    rows: int | None = None
    bytes: int | None = None
    reason: str = "no limit is set"

    def of_rows_of(self, sizes: Sequence[int]) -> Limit:
        """Turn `bytes` into a number of rows, by the sizes of a sample of them; at least one row fits.

        :param sizes: bytes of each row of the sample.
        """
        if self.bytes is None or not sizes:
            return self
        each = sum(sizes) / len(sizes)
        fitting = max(int(self.bytes // max(each, 1)), 1)
        if self.rows is not None and self.rows <= fitting:
            return self
        return Limit(
            fitting, self.bytes, f"max_bytes_per_batch={self.bytes}, {each:.0f} bytes a row"
        )

    def reason_for(self, taken: int, backlog: int | None, unit: str = "rows") -> str:
        """Word why a batch has the rows that it has.

        :param taken: its rows.
        :param backlog: the rows that there were.
        :param unit: what is counted, if it is not rows.
        """
        if backlog is not None and taken >= backlog:
            only = f"the only {unit.removesuffix('s')} that there was"
            return only if taken == 1 else f"all {taken} {unit} that there were"
        return f"{taken} of {'many' if backlog is None else backlog} {unit}: {self.reason}"

    def shares(self, available: Mapping[str, int]) -> dict[str, int]:
        """Share `rows` among partitions, as evenly as they have them.

        :param available: per partition, how many rows it has.
        """
        left = self.rows
        shares = dict(available)
        if left is None or sum(available.values()) <= left:
            return shares
        if (
            left < len(available)
        ):  # one row each, from the partitions with the most rows; a waiting partition becomes one of them
            most = sorted(available, key=lambda name: (-available[name], name))
            return {
                name: min(available[name], 1) if name in most[:left] else 0 for name in available
            }
        # The smallest first: what one does not use is left for the others.
        for count, name in enumerate(sorted(available, key=lambda name: (available[name], name))):
            shares[name] = min(available[name], -(-left // (len(available) - count)))
            left -= shares[name]
        return shares


@dataclass(frozen=True)
class BatchSize:
    """The limits among the arguments of a source.

    :param max_rows: at most so many rows in a batch.
    :param max_bytes: at most so many bytes in a batch.
    :param target_seconds: adaptive: as many rows as are processed in so many seconds, by what the last transactions
        took. A backlog is worked off in few large batches, a trickle in small ones.
    :param first: the limit of an adaptive batch while nothing is measured.
    :param least: an adaptive batch is never limited to fewer.
    :param most: an adaptive batch never has more; None: any number.
    :param unit: what is counted, if it is not rows.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    target_seconds: float | None = None
    first: int = FIRST_ROWS
    least: int = LEAST_ROWS
    most: int | None = None
    unit: str = "rows"

    @classmethod
    def checked(
        cls,
        source: str,
        *,
        max_rows: int | None,
        max_bytes: int | None,
        target_seconds: float | None,
    ) -> BatchSize:
        """Check the arguments of a source.

        :param source: whose arguments they are, for the message.
        :raises ConfigError: one is no positive number.
        """
        found = cls(max_rows, max_bytes, target_seconds)
        for name, value in found.arguments().items():
            whole = name != "target_seconds"
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else (int, float))
                or not value > 0
            ):
                remedy = f"Give a {'whole ' if whole else ''}number above 0, or leave it out."
                raise ConfigError(option=f"{name} of {source}", value=value, remedy=remedy)
        return found

    @classmethod
    def of_files(cls, target_seconds: float) -> BatchSize:
        """Make the adaptive limit of a source of files."""
        return cls(
            target_seconds=target_seconds,
            first=FIRST_FILES,
            least=1,
            most=MOST_FILES,
            unit="files",
        )

    def arguments(self) -> dict[str, float | int]:
        """Return the arguments of a source that are set."""
        given = {
            "max_rows_per_batch": self.max_rows,
            "max_bytes_per_batch": self.max_bytes,
            "target_seconds": self.target_seconds,
        }
        return {name: value for name, value in given.items() if value is not None}

    def limit(self, measured: Measured = ()) -> Limit:
        """Limit the next batch.

        :param measured: what the last transactions took; only needed with `target_seconds`.
        """
        fixed = Limit(self.max_rows, self.max_bytes)
        if self.max_rows is not None:
            fixed = replace(fixed, reason=f"max_rows_per_batch={self.max_rows}")
        if self.target_seconds is None:
            return fixed
        adapted = self._adapted(self.target_seconds, measured)
        if self.max_rows is not None and adapted.rows is not None and self.max_rows <= adapted.rows:
            return fixed
        return replace(adapted, bytes=self.max_bytes)

    def _adapted(self, target: float, measured: Measured) -> Limit:
        if not measured:
            return Limit(self.first, reason=f"nothing is measured yet, target_seconds={target:g}")
        overhead, per_row, counted = _line(measured)
        fastest = GROWTH * int(max(rows for rows, _ in measured))
        seconds = max(target - overhead, ROWS_SHARE * target)
        fitting = fastest if per_row * fastest <= seconds else round(seconds / per_row)
        why = f"target_seconds={target:g}, and the last {counted} took {overhead:.1f} s and "
        why += f"{per_row * 1_000_000:.1f} s for a million {self.unit}"
        if fitting == fastest:
            why += f"; at most {GROWTH} times the largest of them"
        if fitting < self.least:
            why += f"; at least {self.least} {self.unit}"
        rows = max(fitting, self.least)
        if self.most is not None and rows > self.most:
            why += f"; at most {self.most} {self.unit}"
            rows = self.most
        return Limit(rows, reason=why)


def _line(measured: Measured) -> tuple[float, float, int]:
    """Fit seconds of a transaction and of each row; and how many of the last ones it uses.

    Weighted least squares. Older ones that contradict newer ones are left out: fewer rows took longer, or a row took
    many times as long. Where all are alike, every second counts for the rows: the next batch is rather too small.
    """
    for first in range(len(measured)):
        rows, seconds = zip(*measured[first:], strict=True)
        weights = [FADING**age for age in reversed(range(len(rows)))]
        mean_rows = _mean(rows, weights)
        mean_seconds = _mean(seconds, weights)
        spread = _mean([(each - mean_rows) ** 2 for each in rows], weights)
        together = _mean(
            [(each - mean_rows) * one for each, one in zip(rows, seconds, strict=True)], weights
        )
        if spread < (0.1 * mean_rows) ** 2:
            break
        if together >= 0:
            per_row = together / spread
            overhead = mean_seconds - per_row * mean_rows
            if overhead >= 0:
                return overhead, per_row, len(rows)
            if overhead > -UNEVEN * mean_seconds:
                break
    return 0.0, mean_seconds / mean_rows, len(rows)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return float(sum(map(mul, values, weights)) / sum(weights))
