"""The work of a task: before the turn of its transaction, and in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.transaction.alarms import (
        Alarm as Alarm,
        AlarmCallback as AlarmCallback,
        AlarmCallbacks as AlarmCallbacks,
        AlarmChange as AlarmChange,
        AlarmKind as AlarmKind,
        AlarmLimits as AlarmLimits,
        AlarmTopology as AlarmTopology,
        certain as certain,
        changes as changes,
        raise_alarm as raise_alarm,
    )
    from airflow_tx.transaction.commit.check import (
        Check as Check,
        check as check,
        checked_checks as checked_checks,
    )
    from airflow_tx.transaction.commit.committer import (
        INSIDE_KEY as INSIDE_KEY,
        Commit as Commit,
        InstanceStates as InstanceStates,
        PhaseCommit as PhaseCommit,
    )
    from airflow_tx.transaction.commit.contributions import (
        LOST as LOST,
        old_side as old_side,
        shown_key as shown_key,
    )
    from airflow_tx.transaction.commit.handoff import (
        clean_up as clean_up,
        due_skip as due_skip,
        is_processing as is_processing,
        messages_of as messages_of,
        pass_on as pass_on,
        take_skip_or_wait as take_skip_or_wait,
        undoable as undoable,
    )
    from airflow_tx.transaction.commit.restatement import (
        INSTEAD as INSTEAD,
        check_entry as check_entry,
        contributions as contributions,
        is_asked as is_asked,
        never_restated as never_restated,
        refused_by_dag as refused_by_dag,
        replaced_txids as replaced_txids,
    )
    from airflow_tx.transaction.commit.roll_forward import (
        MissingTransaction as MissingTransaction,
        RollForward as RollForward,
    )
    from airflow_tx.transaction.commit.run_slots import (
        QUEUED as QUEUED,
        Comeback as Comeback,
        TaskRuns as TaskRuns,
        Yielded as Yielded,
        comeback as comeback,
        slots_of as slots_of,
        start_yielded as start_yielded,
        unless_yielded as unless_yielded,
        yield_slot as yield_slot,
    )
    from airflow_tx.transaction.commit.state_history import (
        StateHistory as StateHistory,
        StateLook as StateLook,
    )
    from airflow_tx.transaction.commit.table_history import (
        TableHistory as TableHistory,
        TableRollForward as TableRollForward,
    )
    from airflow_tx.transaction.commit.turn import (
        RESUMED as RESUMED,
        WARM_PLACES as WARM_PLACES,
        WaitingLine as WaitingLine,
        commit_in_turn as commit_in_turn,
        read_line as read_line,
    )
    from airflow_tx.transaction.commit.update import (
        Update as Update,
        append as append,
        checked_updates as checked_updates,
        partition_persist as partition_persist,
        persistent_aggregate as persistent_aggregate,
        rejected_update as rejected_update,
        states_of as states_of,
        written_together as written_together,
    )
    from airflow_tx.transaction.corrections import follow as follow
    from airflow_tx.transaction.metrics import (
        GAUGES_EVERY as GAUGES_EVERY,
        LAG_PATIENCE as LAG_PATIENCE,
        Cadence as Cadence,
        Metric as Metric,
        send_acker_load as send_acker_load,
        send_behind as send_behind,
        send_failure as send_failure,
        send_open as send_open,
    )
    from airflow_tx.transaction.processing.application import (
        ack_application as ack_application,
        acknowledge as acknowledge,
        describe_batch as describe_batch,
        emitted_refs as emitted_refs,
        with_files as with_files,
    )
    from airflow_tx.transaction.processing.batch import (
        current_batch as current_batch,
        rows_of_output as rows_of_output,
    )
    from airflow_tx.transaction.processing.begin import (
        allocate as allocate,
        ask as ask,
        asked as asked,
        await_lane as await_lane,
        comes_soon as comes_soon,
        committed_batch as committed_batch,
        conf_of as conf_of,
        gap as gap,
        has_batch as has_batch,
        is_in_lane as is_in_lane,
        key_of as key_of,
        order_in as order_in,
        room as room,
    )
    from airflow_tx.transaction.processing.code import (
        code_of_dag as code_of_dag,
        digest_of_callable as digest_of_callable,
    )
    from airflow_tx.transaction.processing.consumed_rows import RowsReading as RowsReading
    from airflow_tx.transaction.processing.outputs import (
        RETURN_KEY as RETURN_KEY,
        check_returned as check_returned,
        is_ref as is_ref,
        returned as returned,
        xcom_fingerprint as xcom_fingerprint,
    )
    from airflow_tx.transaction.processing.task import (
        Processing as Processing,
        advice_of as advice_of,
        check_arguments as check_arguments,
        hook_up as hook_up,
        noted_reason as noted_reason,
        problem_of as problem_of,
        refusal_of as refusal_of,
        stage_frames as stage_frames,
    )
    from airflow_tx.transaction.spec import (
        COMMIT_KEY as COMMIT_KEY,
        LEDGER_PLACE as LEDGER_PLACE,
        WHY_NOT as WHY_NOT,
        HasTransaction as HasTransaction,
        PhaseSpec as PhaseSpec,
        PlacedTask as PlacedTask,
        RunsApplication as RunsApplication,
        TransactionSpec as TransactionSpec,
        begun_by as begun_by,
        coordinator_id as coordinator_id,
        spec_of as spec_of,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
