"""The rules by which all readers convert a text or object to the exact value of a typed column. Misfits are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.base.rows.arrow import (
        NoTable as NoTable,
        dicts_of as dicts_of,
        exact_table as exact_table,
        first_line as first_line,
        is_frame as is_frame,
        is_same_value as is_same_value,
        lacking as lacking,
        plain_type as plain_type,
        readable as readable,
        reader_of as reader_of,
        reader_of_dicts as reader_of_dicts,
        shown_value as shown_value,
        typed_batch as typed_batch,
    )
    from airflow_tx.base.rows.blocks import (
        NotProven as NotProven,
        objects_batch as objects_batch,
        typed_column as typed_column,
    )
    from airflow_tx.base.rows.jdbc import (
        JDBC_DATABASES as JDBC_DATABASES,
        READER as READER,
        SETTINGS as SETTINGS,
        JdbcQuery as JdbcQuery,
        NoJdbc as NoJdbc,
        session_of_spark as session_of_spark,
    )
    from airflow_tx.base.rows.spark import (
        check_settings as check_settings,
        empty_frame as empty_frame,
        held_settings as held_settings,
        parquet_frame as parquet_frame,
        python_frame as python_frame,
        spark_reader as spark_reader,
    )
    from airflow_tx.base.rows.sql import (
        Element as Element,
        Exact as Exact,
        ExactColumns as ExactColumns,
        Unreadable as Unreadable,
        arrow_type_of as arrow_type_of,
        base_type as base_type,
        exact as exact,
        is_instant as is_instant,
        shown_text as shown_text,
        sql_text as sql_text,
    )
    from airflow_tx.base.rows.types import (
        BLANKS as BLANKS,
        COLUMN_TYPES as COLUMN_TYPES,
        ColumnType as ColumnType,
        UnfitText as UnfitText,
        arrow_types_of as arrow_types_of,
        batch_rows as batch_rows,
        check_names as check_names,
        column_name as column_name,
        columns_of as columns_of,
        ddl_of as ddl_of,
        found_columns_of as found_columns_of,
        nested_columns_of as nested_columns_of,
        object_values as object_values,
        parsed_object as parsed_object,
        says_not_null as says_not_null,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
