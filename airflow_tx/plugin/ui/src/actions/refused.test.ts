import { describe, expect, it } from "vitest";

import { refused } from "./RefusedRows";

describe("the refused rows of a log", () => {
  it("are the samples of checks and the values of refusals, each once", () => {
    const raised = { exc_type: "RowsRefused", exc_value: "a.csv: line 2: n = 'x'" };
    const content = [
      { event: "Transaction 3.1 starts" },
      { event: "Rows that check 'positive' refuses: (n=-1)", logger: "airflow_tx.refused_rows" },
      { event: "Rows that check 'positive' refuses are looked for", logger: "root" },
      { event: "Task failed", error_detail: [raised, { exc_type: "KeyError", exc_value: "secret" }] },
      { event: "Task failed", error_detail: [raised] },
    ];
    expect(refused(content)).toEqual(["Rows that check 'positive' refuses: (n=-1)", "a.csv: line 2: n = 'x'"]);
  });
});
