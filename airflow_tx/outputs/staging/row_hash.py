"""Hash the rows of Arrow batches like Spark's `xxhash64`. Readers use these hashes to check the rows of an output.

The hash of a row is XXH64 over its columns, in the order of their names. The first seed is 42, and the hash of a column
is the seed of the next column. A mark for the type precedes each value. A mark for the column replaces a null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.ledger import RowsDigest, column_marks, form_of_columns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]

    Hashes = np.ndarray[Any, np.dtype[np.uint64]]
else:
    np = LazyModule("numpy")
    pa = LazyModule("pyarrow")

_SEED = 42
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_LOW = 0xFFFFFFFF
_LONG_DIGITS = 18
_DTYPES = {"int8": "i1", "int32": "i4", "int64": "i8", "float": "f4", "double": "f8"}
"""The numpy dtypes, by Arrow type name."""


def digest_of_batch(batch: pa.RecordBatch) -> RowsDigest:
    """Return the digest of the rows of a batch over all columns.

    If a column type has no hash, the rows are only counted.
    """
    from airflow_tx.base.rows import ColumnType

    names = sorted(batch.schema.names)
    hashes: Hashes = np.full(batch.num_rows, _SEED, dtype=np.uint64)
    for name in names:
        column = batch.column(name)
        kind = ColumnType.of_arrow(column.type)
        marks = column_marks(name, "" if kind is None else kind.hashed)
        found = _column(column, _marked(column, hashes, *marks))
        if found is None:
            return RowsDigest(batch.num_rows)
        hashes = found
    return RowsDigest(batch.num_rows, int(hashes.sum(dtype=np.uint64)), form_of_columns(names))


def _marked(column: pa.Array, seeds: Hashes, value: int | None, null: int) -> Hashes:
    """Hash a column's marks. A mark precedes each value, or takes the place of a null."""
    marked = seeds if value is None else _of_eight(seeds, np.uint64(_prepared(value)))
    if not column.null_count:
        return marked
    nulls = _of_eight(seeds, np.uint64(_prepared(null)))
    if pa.types.is_null(column.type):
        return nulls
    return np.where(_numbers(column.is_valid().cast(pa.int8())), marked, nulls)


def _prepared(value: int) -> int:
    """Compute the part of an 8-byte number's hash that does not depend on the hash so far."""
    turned = value % 2**64 * _P2 % 2**64
    return (turned << 31 | turned >> 33) % 2**64 * _P1 % 2**64


def _column(column: pa.Array, seeds: Hashes) -> Hashes | None:
    kind = column.type
    if pa.types.is_null(kind):
        return seeds
    hashed = _fixed(column, seeds)
    if hashed is None:
        return _variable(column, seeds)
    if not column.null_count:
        return hashed
    valid = _numbers(column.is_valid().cast(pa.int8()))
    return np.where(valid, hashed, seeds)


def _fixed(column: pa.Array, seeds: Hashes) -> Hashes | None:
    kind = column.type
    types = pa.types
    if types.is_int64(kind):
        return _eight(_numbers(column).view(np.uint64), seeds)
    if types.is_timestamp(kind) and kind.unit == "us":
        return _eight(_numbers(column.cast(pa.int64())).view(np.uint64), seeds)
    if types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_date32(kind):
        return _four(_numbers(column.cast(pa.int32())).view(np.uint32), seeds)
    if types.is_float64(kind):
        return _eight(_bits(_numbers(column), np.uint64), seeds)
    if types.is_float32(kind):
        return _four(_bits(_numbers(column), np.uint32), seeds)
    if types.is_decimal128(kind) and kind.precision <= _LONG_DIGITS:
        low = np.frombuffer(column.buffers()[1], dtype=np.uint64)[::2]
        return _eight(low[column.offset : column.offset + len(column)], seeds)
    return None


def _variable(column: pa.Array, seeds: Hashes) -> Hashes | None:
    from xxhash import xxh64_intdigest

    kind = column.type
    types = pa.types
    values: list[bytes | None]
    if types.is_string(kind) or types.is_large_string(kind):
        values = column.cast(
            pa.large_binary() if types.is_large_string(kind) else pa.binary()
        ).to_pylist()
    elif types.is_binary(kind) or types.is_large_binary(kind):
        values = column.to_pylist()
    elif types.is_decimal128(kind):
        values = _unscaled(column)
    else:
        return None
    pairs = zip(values, seeds.tolist(), strict=True)
    return np.array(
        [seed if value is None else xxh64_intdigest(value, seed) for value, seed in pairs],
        dtype=np.uint64,
    )


def _numbers(column: pa.Array) -> Any:
    """Return the memory of a numeric column as an array. Its values at nulls are undefined.

    `to_numpy` and `fill_null` would load pandas, which takes a second of CPU time.
    """
    dtype = _DTYPES[str(column.type)]
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]


def _bits(values: Any, kind: Any) -> Any:
    # Negative zero equals zero, and all NaN values are equal.
    clean = np.where(np.isnan(values), np.array(np.nan, dtype=values.dtype), values + 0.0)
    return clean.astype(values.dtype).view(kind)


def _unscaled(column: pa.Array) -> list[bytes | None]:
    """Return the unscaled values of decimals as bytes, like Java's BigInteger."""
    data = column.buffers()[1]
    start = column.offset
    found: list[bytes | None] = []
    for at, valid in enumerate(column.is_valid().to_pylist(), start):
        number = int.from_bytes(data[16 * at : 16 * at + 16].to_pybytes(), "little", signed=True)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        found.append(number.to_bytes(size, "big", signed=True) if valid else None)
    return found


# --- XXH64 of fixed-size values, vectorized -----------------------------------------------------------------------


def _eight(values: Any, seeds: Hashes) -> Hashes:
    u = np.uint64
    return _of_eight(seeds, _turned(values * u(_P2), 31) * u(_P1))


def _of_eight(seeds: Hashes, prepared: Any) -> Hashes:
    u = np.uint64
    hashes = seeds + u((_P5 + 8) % 2**64)
    hashes ^= prepared
    return _mixed(_turned(hashes, 27) * u(_P1) + u(_P4))


def _four(values: Any, seeds: Hashes) -> Hashes:
    u = np.uint64
    hashes = seeds + u((_P5 + 4) % 2**64)
    hashes ^= (values.astype(np.uint64) & u(_LOW)) * u(_P1)
    return _mixed(_turned(hashes, 23) * u(_P2) + u(_P3))


def _turned(hashes: Hashes, bits: int) -> Hashes:
    turned: Hashes = (hashes << np.uint64(bits)) | (hashes >> np.uint64(64 - bits))
    return turned


def _mixed(hashes: Hashes) -> Hashes:
    u = np.uint64
    hashes ^= hashes >> u(33)
    hashes *= u(_P2)
    hashes ^= hashes >> u(29)
    hashes *= u(_P3)
    hashes ^= hashes >> u(32)
    return hashes
