"""Aggregators whose result is an estimate from a small sketch. They need the extra `sketches`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from airflow_tx.base.errors import ConfigError
from airflow_tx.state.aggregators import CombinerAggregator


def _datasketches() -> Any:
    try:
        return import_module("datasketches")
    except ImportError:
        remedy = "It needs datasketches: pip install 'airflow-provider-tx[sketches]'."
        raise ConfigError(option="ApproxCountDistinct", value="a sketch", remedy=remedy) from None


@dataclass(frozen=True)
class HllSketch:
    """A HyperLogLog sketch of Apache DataSketches, as created by Spark's hll_sketch_agg.

    :param lg_k: binary logarithm of the number of buckets, from 4 to 21.
    """

    lg_k: int = 12
    name: ClassVar[str] = "hll_sketch"
    type: ClassVar[str] = "bytes"
    idempotent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (
            isinstance(self.lg_k, bool)
            or not isinstance(self.lg_k, int)
            or not 4 <= self.lg_k <= 21
        ):
            raise ConfigError(
                option="lg_k of a sketch",
                value=self.lg_k,
                remedy="Use a whole number from 4 to 21.",
            )

    def zero(self) -> bytes:
        return self._image(self._empty())

    def init(self, value: Any) -> bytes | None:
        """Create a sketch of one value, which must be a text or an integer. It is hashed as in Spark."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise TypeError("is not a text or an integer, so a sketch cannot count it")
        sketch = self._empty()
        sketch.update(value)
        return self._image(sketch)

    def combine(self, a: Any, b: Any) -> bytes | None:
        if a is None or b is None:
            return b if a is None else a  # type: ignore[no-any-return]
        library = _datasketches()
        union = library.hll_union(self.lg_k)
        for image in (a, b):
            union.update(self._read(image))
        return self._image(union.get_result(library.tgt_hll_type.HLL_8))

    def estimate(self, image: bytes | None) -> int | None:
        """Estimate the number of distinct values in the sketch."""
        return None if image is None else round(self._read(image).get_estimate())

    def _empty(self) -> Any:
        library = _datasketches()
        return library.hll_sketch(self.lg_k, library.tgt_hll_type.HLL_8)

    def _read(self, image: bytes) -> Any:
        library = _datasketches()
        try:
            return library.hll_sketch.deserialize(bytes(image))
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(f"is no HLL sketch of DataSketches ({error})") from None

    def _image(self, sketch: Any) -> bytes:
        return bytes(sketch.serialize_compact())


@dataclass(frozen=True)
class ApproxCountDistinct:
    """An estimate of the number of distinct values, stored as a sketch in the column `<column>_sketch`.

    A row may have the column `<column>_sketch`, computed by Spark's hll_sketch_agg(x), or the column itself with one
    text or integer. Reading the state returns both.

    :param lg_k: binary logarithm of the number of buckets. The error is about 1.04 / sqrt(2**lg_k): 1.6 % for 12, which
        is also Spark's default.
    """

    lg_k: int = 12
    name: ClassVar[str] = "approx_count_distinct"
    result_type: ClassVar[str] = "bigint"

    def __post_init__(self) -> None:
        HllSketch(self.lg_k)

    def parts(self, column: str) -> dict[str, CombinerAggregator]:
        return {f"{column}_sketch": HllSketch(self.lg_k)}

    def deltas(self, column: str, value: Any) -> dict[str, Any]:
        return {f"{column}_sketch": HllSketch(self.lg_k).init(value)}

    def result(self, row: Mapping[str, Any]) -> int | None:
        (image,) = row.values()
        return HllSketch(self.lg_k).estimate(image)
