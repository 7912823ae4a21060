/** The rows that a task refused. Only its log has them, and Airflow answers only a person who may read the log. */

import { Button, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { type Advice, api, type LogLine, Refusal } from "../api/client";

export function RefusedRows({ log }: { log: NonNullable<Advice["log"]> }) {
  const [asked, setAsked] = useState(false);
  const query = useQuery({ enabled: asked, queryFn: ({ signal }) => api.log(log, signal), queryKey: ["log", log.path], retry: false });
  if (!asked || query.isPending) {
    return (
      <Button loading={asked} onClick={() => setAsked(true)} size="xs" variant="outline">
        Show the refused rows
      </Button>
    );
  }
  const lines = query.data ? refused(query.data) : [];
  const problem = query.error instanceof Refusal ? query.error.message : query.error ? "Airflow's api-server cannot be reached." : null;
  return (
    <Text aria-label="Refused rows" fontFamily="mono" fontSize="xs" maxH="160px" overflowWrap="anywhere" overflowY="auto" role="region" tabIndex={0} w="full" whiteSpace="pre-wrap">
      {problem ?? (lines.length > 0 ? lines.join("\n") : "The log shows no refused rows.")}
    </Text>
  );
}

const OF_ROWS = ["RowsRefused", "NotTakenBack"];
/** Logs the rows that checks refuse, and nothing else. */
const LOGGER = "airflow_tx.refused_rows";

/** Chooses the lines that name rows: of checks, and of a source or a state that refused a value. */
export function refused(content: (LogLine | string)[]): string[] {
  const found = content.flatMap((line) => {
    if (typeof line === "string") return [];
    const raised = (line.error_detail ?? []).filter((each) => OF_ROWS.includes(each.exc_type)).map((each) => each.exc_value);
    return line.logger === LOGGER ? [line.event, ...raised] : raised;
  });
  return [...new Set(found)];
}
