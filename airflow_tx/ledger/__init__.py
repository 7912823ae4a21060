"""The ledger of a topology: the steps that change its records, each in one multi, and the methods that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.ledger.answers import (
        AlreadyCommitted as AlreadyCommitted,
        AlreadySkipped as AlreadySkipped,
        Begun as Begun,
        Bidding as Bidding,
        Blocked as Blocked,
        Committed as Committed,
        Done as Done,
        FailureNoted as FailureNoted,
        GivenUp as GivenUp,
        Granted as Granted,
        Joined as Joined,
        NoData as NoData,
        NotYet as NotYet,
        Processed as Processed,
        Repaired as Repaired,
        ReplayNoted as ReplayNoted,
        Restarted as Restarted,
        ToBeSkipped as ToBeSkipped,
        WindowFull as WindowFull,
    )
    from airflow_tx.ledger.api import (
        Create as Create,
        Delete as Delete,
        Node as Node,
        Paths as Paths,
        Put as Put,
        Requirement as Requirement,
        Store as Store,
        Unchanged as Unchanged,
        Write as Write,
        ack_element as ack_element,
        ack_name as ack_name,
        decode_name as decode_name,
        encode_name as encode_name,
        listed_topologies as listed_topologies,
        topologies as topologies,
    )
    from airflow_tx.ledger.attempt import (
        LANE_TRY as LANE_TRY,
        Grant as Grant,
        TaskTry as TaskTry,
        Token as Token,
        TransactionAttempt as TransactionAttempt,
        of_lane as of_lane,
    )
    from airflow_tx.ledger.audit.chain import (
        Chain as Chain,
        LedgerEvidence as LedgerEvidence,
        StateEvidence as StateEvidence,
        ledger_evidence as ledger_evidence,
    )
    from airflow_tx.ledger.audit.move import Mover as Mover
    from airflow_tx.ledger.audit.older_lines import lines_lacking as lines_lacking
    from airflow_tx.ledger.audit.plan import HeldState as HeldState
    from airflow_tx.ledger.audit.rebuild import (
        Repairs as Repairs,
        SeenState as SeenState,
        bound_after as bound_after,
        reason_of as reason_of,
    )
    from airflow_tx.ledger.audit.stage import StageAudit as StageAudit
    from airflow_tx.ledger.audit.verification import (
        ColumnTotal as ColumnTotal,
        RowCount as RowCount,
        Verified as Verified,
        changed_values as changed_values,
        verified as verified,
    )
    from airflow_tx.ledger.batch import (
        WHOLE as WHOLE,
        Batch as Batch,
        BeginRequest as BeginRequest,
        Json as Json,
        Outside as Outside,
        PreviousBatch as PreviousBatch,
        RestatedBatch as RestatedBatch,
        TopologyRequest as TopologyRequest,
    )
    from airflow_tx.ledger.batch_words import (
        batch_in_words as batch_in_words,
        batch_texts as batch_texts,
        counted as counted,
        gone_in_words as gone_in_words,
        shortened as shortened,
    )
    from airflow_tx.ledger.code_digest import (
        file_digest as file_digest,
        function_digest as function_digest,
    )
    from airflow_tx.ledger.json_text import (
        as_kept as as_kept,
        digest as digest,
        dumps as dumps,
        is_shortened as is_shortened,
    )
    from airflow_tx.ledger.ledger import Ledger as Ledger, ReadOnlyLedger as ReadOnlyLedger
    from airflow_tx.ledger.life import (
        ACCEPT_CHANGE as ACCEPT_CHANGE,
        CHANGE as CHANGE,
        ENDS as ENDS,
        LEDGER_LOST as LEDGER_LOST,
        NOTHING_PENDING as NOTHING_PENDING,
        RESET as RESET,
        ROLL_FORWARD as ROLL_FORWARD,
        STATE_LOST as STATE_LOST,
        Life as Life,
        Pending as Pending,
        accepted_code as accepted_code,
        holds_for_good as holds_for_good,
        renamed_since as renamed_since,
    )
    from airflow_tx.ledger.output import output_text as output_text, same_output as same_output
    from airflow_tx.ledger.reading import (
        LedgerReader as LedgerReader,
        LedgerReading as LedgerReading,
        TurnReading as TurnReading,
    )
    from airflow_tx.ledger.receipt import (
        ASIDE as ASIDE,
        MALFORMED as MALFORMED,
        NOTHING_WRITTEN as NOTHING_WRITTEN,
        POSITION_KEPT as POSITION_KEPT,
        REJECTED as REJECTED,
        CheckNote as CheckNote,
        FenceBatch as FenceBatch,
        Outcome as Outcome,
        Receipt as Receipt,
        Replaced as Replaced,
        Written as Written,
        rejected_of as rejected_of,
        restated as restated,
    )
    from airflow_tx.ledger.records import (
        Ack as Ack,
        AlarmNote as AlarmNote,
        Binding as Binding,
        BlockMark as BlockMark,
        End as End,
        EndLine as EndLine,
        Loss as Loss,
        Metadata as Metadata,
        Phase as Phase,
        RepairRecord as RepairRecord,
        Skipped as Skipped,
        TakenRange as TakenRange,
        TopologyRecord as TopologyRecord,
        TransactionRecord as TransactionRecord,
        Waiter as Waiter,
        Wish as Wish,
        decode as decode,
        encode as encode,
    )
    from airflow_tx.ledger.row_digest import (
        COUNT as COUNT,
        RowsDigest as RowsDigest,
        column_marks as column_marks,
        form_of_columns as form_of_columns,
    )
    from airflow_tx.ledger.steps.begin import BoundStep as BoundStep
    from airflow_tx.ledger.steps.commit import (
        AcquireAnswer as AcquireAnswer,
        AcquireRequest as AcquireRequest,
    )
    from airflow_tx.ledger.steps.end import (
        HOUR as HOUR,
        check_undoable as check_undoable,
        fence_batch as fence_batch,
        skip_refused as skip_refused,
    )
    from airflow_tx.ledger.steps.processing import (
        OutputName as OutputName,
        RowsRead as RowsRead,
        code_of as code_of,
        consumed as consumed,
        content_of as content_of,
        in_words as in_words,
        tasks_of as tasks_of,
    )
    from airflow_tx.ledger.steps.recovery import (
        COORDINATOR as COORDINATOR,
        ReplayRequest as ReplayRequest,
    )
    from airflow_tx.ledger.steps.replay import (
        LIVE_RUN_STATES as LIVE_RUN_STATES,
        WishRequest as WishRequest,
        check_changeable as check_changeable,
        most_restated as most_restated,
        wishes_to_start as wishes_to_start,
    )
    from airflow_tx.ledger.steps.roll_forward import (
        RolledState as RolledState,
        Rolling as Rolling,
    )
    from airflow_tx.ledger.steps.step import Audit as Audit, Decision as Decision
    from airflow_tx.ledger.store.client import (
        ClientConfig as ClientConfig,
        Tls as Tls,
        connect as connect,
        disconnect as disconnect,
    )
    from airflow_tx.ledger.store.memory import MemoryStore as MemoryStore
    from airflow_tx.ledger.store.zookeeper import (
        WatchedStore as WatchedStore,
        ZooKeeperStore as ZooKeeperStore,
    )
    from airflow_tx.ledger.upstream.corrections import (
        Correction as Correction,
        CorrectionReader as CorrectionReader,
        Corrections as Corrections,
        NotedCorrections as NotedCorrections,
        TakenRanges as TakenRanges,
        noted_corrections as noted_corrections,
    )
    from airflow_tx.ledger.upstream.reading import (
        UpstreamPosition as UpstreamPosition,
        UpstreamReading as UpstreamReading,
    )
    from airflow_tx.ledger.views.stages import (
        ChainStages as ChainStages,
        readers_in_words as readers_in_words,
    )
    from airflow_tx.ledger.views.status import (
        REDACTION as REDACTION,
        Person as Person,
        PersonOfAttempt as PersonOfAttempt,
        TransactionView as TransactionView,
        WaitingRun as WaitingRun,
        Words as Words,
        check_in_words as check_in_words,
        moment as moment,
        pace_in_words as pace_in_words,
        size_in_words as size_in_words,
        to_continue as to_continue,
        with_run_end as with_run_end,
    )
    from airflow_tx.ledger.views.view import (
        HealthCode as HealthCode,
        LedgerView as LedgerView,
        TopologyState as TopologyState,
        TopologyView as TopologyView,
        TransactionDetails as TransactionDetails,
        columns as columns,
        topology_health as topology_health,
        topology_view as topology_view,
        transaction_details as transaction_details,
        transaction_remedy as transaction_remedy,
        whole_record as whole_record,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
