"""In a real Airflow: an output that fails a check is in no state, until a person accepts it; then it counts once."""

from __future__ import annotations

import pytest

from tests.airflow.stack import SIZE, Stack, expected


@pytest.mark.long
@pytest.mark.parametrize("dag_id", ["checked", "checked_phase"])
def test_a_batch_whose_failed_check_is_accepted_counts_once_even_if_its_committer_is_killed(
    stack: Stack, dag_id: str
) -> None:
    airflow, ledger = stack.airflow, stack.ledger(dag_id)
    for run_id in ("r1", "r2"):
        stack.start(dag_id, run_id)
        stack.begun(dag_id, run_id)
    airflow.wait_run(dag_id, "r1")
    airflow.wait_run(dag_id, "r2", state="failed")
    assert stack.totals(dag_id) == expected(SIZE)
    record = ledger.read("coordinator/transactions/2")
    assert (record["attempt"], record["for_good"], list(record["checks"])) == (1, 1, ["small sums"])
    assert "check 'small sums' failed: sum(total) < 100 is false: sum(total) is 145" in record["error"]

    killed = stack.failpoints.arm("commit.after_acquire", "kill", topology=dag_id, txid=2)
    rows = stack.tx_rows(*ledger.advised(2, "accept-check"), "it was a large day", "--yes")
    assert [row["done"] for row in rows] == [
        "accepted: small sums: sum(total) < 100 is false: sum(total) is 145",
        "its failed tasks were cleared",
    ]
    airflow.wait_run(dag_id, "r2")
    assert killed.reached
    stack.assert_counted_once(dag_id, 2 * SIZE)
    checks = [ledger.read(f"history/{txid}")["receipt"]["checks"] for txid in (1, 2)]
    assert checks[0] == {"small sums": {"passed": True}, "no gaps": {"passed": True}}
    assert checks[1]["small sums"]["accepted"]["why"] == "it was a large day"
    assert checks[1]["no gaps"] == {"passed": True}
