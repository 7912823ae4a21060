/** What is known of a transaction: its batch, attempts, tasks, states, and what people did. */

import { Box, Button, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";

import { api, type RejectedAnswer, type TransactionPage } from "../api/client";
import { AirflowLink } from "../parts/AirflowLink";
import { Refused } from "../parts/Busy";
import { Term } from "../parts/Term";
import { count, counted, duration, moment } from "../parts/words";
import { Code, Facts, Json, Rows, Section } from "./facts";
import { inWords } from "./once";

interface Props {
  page: TransactionPage;
}

export function Batch({ page }: Props) {
  const { batch } = page;
  const words = (name: keyof typeof RAW) => (batch.shortened.includes(name) ? "not stored because it was too long" : inWords(batch[name]));
  return (
    <Section title="Batch">
      <Facts
        facts={[
          ["Batch", page.batch_name ?? words("metadata")],
          ["Size", batch.words],
          ["Rows", page.rows === null ? null : count(page.rows)],
          [position("before"), words("position_before")],
          [position("after"), words("position_after")],
          [<Term name="digest">Digest of rows</Term>, page.digest && <Code>{page.digest}</Code>],
          ["Not proven", page.unproven.length > 0 && page.unproven.join("; ")],
          ["Pinned", page.pinned && "the rows of this batch never change again"],
          [<Term name="stale">Stale</Term>, page.stale && "the batch does not begin where the transaction before it ended"],
          ["Losses before this batch", page.losses.length > 0 && page.losses.join("; ")],
          [<Term name="readmit">Re-admitted as</Term>, page.readmitted_as],
          [<Term name="restate">Restates</Term>, page.restates !== null && `transaction ${page.restates}`],
          [<Term name="restate">Restated by</Term>, page.restated_by !== null && `transaction ${page.restated_by}, which counts instead`],
          ["Behind", page.behind],
          ["Yielded to", page.yielded_to === null ? null : `transaction ${page.yielded_to}`],
        ]}
      />
      <Raw batch={batch} />
    </Section>
  );
}

/** What is shown as JSON. */
const RAW = { metadata: "Metadata", position_before: "Position before", position_after: "Position after" } as const;

/** The batch exactly as the ledger keeps it, for a person who opens it. */
function Raw({ batch }: Pick<TransactionPage, "batch">) {
  const names = (["metadata", "position_before", "position_after"] as const).filter((name) => batch[name] != null);
  if (names.length === 0) return null;
  return (
    <Box asChild fontSize="sm" mt={1}>
      <details>
        <summary style={{ cursor: "pointer" }}>Raw JSON</summary>
        {names.map((name) => (
          <Json key={name} name={`${RAW[name]}${batch.shortened.includes(name) ? " (digest only, because the value was too long)" : ""}`} value={batch[name]} />
        ))}
      </details>
    </Box>
  );
}

const position = (when: string) => <Term name="position">{`Position ${when}`}</Term>;

const ackWords = (value: string) => (/^0+$/.test(value) ? "0: every emitted id was acked" : value);

export function Tasks({ page, now }: Props & { now: number }) {
  if (page.tasks.length === 0) return null;
  return (
    <Section title="Tries of the tasks">
      <Rows
        headers={["Task", "Try", "Attempt", "State", "Start", "Duration"]}
        label="Tries of the tasks"
        rows={page.tasks.map((task) => [
          taskName(page, task.task_id, task.map_index),
          task.try_number,
          task.attempt,
          task.state,
          at(task.start),
          task.start === null ? null : duration(((task.end === null ? now : Date.parse(task.end)) - Date.parse(task.start)) / 1000),
        ])}
      />
    </Section>
  );
}

function taskName(page: TransactionPage, taskId: string, mapIndex: number): ReactNode {
  const name = mapIndex >= 0 ? `${taskId}[${mapIndex}]` : taskId;
  const path = page.links.tasks[taskId];
  return path === undefined ? name : <AirflowLink path={mapIndex >= 0 ? `${path}/mapped/${mapIndex}` : path}>{name}</AirflowLink>;
}

export function Work({ page }: Props) {
  if (page.work.length === 0) return null;
  return (
    <Section title="Acks">
      <Rows
        headers={["Task", "Instances", "Acked", "Rows read", <Term name="rejected">Rejected</Term>, "Outputs", "Digests", "Code"]}
        label="Acks"
        rows={page.work.map((each) => [
          each.task_id,
          each.instances,
          each.acked === false ? "not yet" : "yes",
          each.rows === null ? null : count(each.rows),
          each.rejected > 0 && count(each.rejected),
          pairs(each.outputs),
          <Code key="digests">{pairs(each.digests)}</Code>,
          <Code key="code">{each.code?.slice(0, 12)}</Code>,
        ])}
      />
      <Facts facts={[[<Term name="ack">Ack value</Term>, <Code key="ack">{ackWords(page.ack_val)}</Code>]]} />
    </Section>
  );
}

/** The rows that its tasks rejected. The page asks their table only once a person wants to see them. */
export function Rejected({ page }: Props) {
  const [asked, setAsked] = useState(false);
  const { topology, txid } = page;
  const query = useQuery({
    enabled: asked,
    gcTime: 0,
    queryFn: ({ signal }) => api.rejected(topology, txid, signal),
    queryKey: ["rejected", topology, txid],
    retry: false,
    staleTime: Infinity,
  });
  const hasRows = page.phase === "COMMITTED" && page.restated_by === null && page.work.some((each) => each.rejected > 0);
  if (!hasRows) return null;
  return (
    <Section title="Rejected rows">
      {query.data ? (
        <Reasons answer={query.data} />
      ) : (
        <Button loading={query.isFetching} onClick={() => setAsked(true)} size="xs" variant="outline">
          Show the rejected rows
        </Button>
      )}
      <Refused again={() => void query.refetch()} asking={query.isFetching} error={query.error} />
    </Section>
  );
}

function Reasons({ answer: { reasons, others, rows, shown } }: { answer: RejectedAnswer }) {
  const left = [others > 0 && counted(others, "more reason"), rows > shown.length && counted(rows - shown.length, "more row")].filter(Boolean);
  const by = (task: string) => task || "the source";
  return (
    <>
      <Rows headers={["Task", "Reason", "Rows"]} label="Reasons" rows={reasons.map((each) => [by(each.task), each.reason, count(each.rows)])} />
      <Rows
        headers={["Task", "Reason", "Where", "Row"]}
        label="Rejected rows"
        rows={shown.map((each) => [by(each.task), each.reason, each.where, <Code key="row">{each.content}</Code>])}
      />
      {left.length > 0 && <Text color="fg.muted" fontSize="sm">{`${left.join(", ")}: see airflow tx rejected`}</Text>}
    </>
  );
}

export function Checks({ page }: Props) {
  if (page.checks.length === 0) return null;
  return (
    <Section title="Checks">
      <Rows
        headers={[<Term name="check">Check</Term>, "Result", "Found"]}
        label="Checks"
        rows={page.checks.map((each) => [each.name, each.result, each.found])}
      />
    </Section>
  );
}

export function States({ page }: Props) {
  if (page.states.length === 0) return null;
  return (
    <Section title="States">
      <Rows
        headers={["State", <Term name="fence">Fence</Term>, <Term name="token">Token</Term>, "Keys written", "Sums", "Last txid", "Digest"]}
        label="States"
        rows={page.states.map((each) => [
          each.state,
          each.fenced ? "set by this commit" : "not set by this commit",
          each.token,
          each.keys === null ? null : count(each.keys),
          pairs(each.sums),
          each.last_txid,
          <Code key="digest">{each.digest}</Code>,
        ])}
      />
    </Section>
  );
}

/** The outputs of its committers, which later tasks read. */
export function NewValues({ page }: Props) {
  if (page.new_values.length === 0) return null;
  return (
    <Section title="New values">
      <Rows
        headers={["Output", "Committer", "Rows"]}
        label="New values"
        rows={page.new_values.map((each) => [each.name, each.task_id, each.rows === null ? null : count(each.rows)])}
      />
    </Section>
  );
}

export function Audit({ page }: Props) {
  const lines = [...page.audit.map((each) => [each.what, each.who, at(each.when), each.why])];
  const { receipt } = page;
  return (
    <>
      {lines.length > 0 && (
        <Section title="Audit">
          <Rows headers={["What", "Who", "When", "Why"]} label="Audit" rows={lines} />
        </Section>
      )}
      {receipt && (
        <Section title="Receipt">
          <Facts
            facts={[
              [<Term name="receipt">Hash of the receipt</Term>, <Code key="hash">{receipt.hash}</Code>],
              ["Previous receipt", <Code key="previous">{receipt.previous}</Code>],
              ["DAG version", receipt.dag_version],
              ["Granted", at(receipt.granted)],
              ["Journal entry", receipt.journal && <Code key="journal">{receipt.journal}</Code>],
            ]}
          />
        </Section>
      )}
    </>
  );
}

function at(when: string | null): ReactNode {
  return when === null ? null : <span style={{ whiteSpace: "nowrap" }}>{moment(when)}</span>;
}

function pairs(values: Record<string, unknown>): string {
  return Object.entries(values)
    .map(([name, value]) => [name, typeof value === "number" ? count(value) : value].filter(Boolean).join(": "))
    .join(", ");
}
