/** A line per topology: those that need a person first. */

import { Box, Button, Heading, HStack, Input, Link as Styled, Table, Text } from "@chakra-ui/react";
import { useEffect, useState } from "react";
import { Link, useNavigate } from "react-router-dom";

import { AdviceLine, Sentence } from "../actions/AdviceLine";
import { useActing, type Asked } from "../actions/acting";
import { api, type TopologyLine } from "../api/client";
import { useLive, useNow } from "../api/live";
import { Loading } from "../parts/Loading";
import { Term } from "../parts/Term";
import { Trouble } from "../parts/Trouble";
import { useAddress, type Address } from "../parts/address";
import { State, STATE_CODES, StateSign, type StateCode } from "../parts/phase";
import { ago, counted, moment } from "../parts/words";
import { Find } from "./Find";
import { Sparkline } from "./Sparkline";
import { lagWords } from "./lag";

const PAGE = 50;
const TYPING = 300;
/** States that the head always counts; the others where there is one. */
const ALWAYS: readonly StateCode[] = ["blocked", "failed", "late", "fine"];

export function Overview() {
  const [address, write] = useAddress();
  const navigate = useNavigate();
  const [act, dialog] = useActing();
  const asked = { state: address.state ? [address.state] : undefined, text: address.text ?? "", limit: PAGE, offset: address.offset ?? 0 };
  const query = useLive(["topologies", asked], (signal) => api.topologies(asked, signal));
  const go = (changes: Partial<Address>) => void navigate(write({ offset: null, ...changes }), { replace: true });
  const { data } = query;
  const filtered = address.state !== null || address.text !== null;
  return (
    <Box p={{ base: 3, md: 4 }}>
      <Heading as="h1" mb={3} size="lg">
        Transactions
      </Heading>
      {data && (data.total > 0 || filtered) && <Find />}
      <Trouble query={query} />
      {data === undefined && <Loading query={query} />}
      {data && data.total === 0 && !filtered && (
        <Text color="fg.muted">There is no topology yet. A DAG with a Transaction appears here once a run of it has begun.</Text>
      )}
      {data && (data.total > 0 || filtered) && (
        <>
          <HStack gap={2} mb={3} wrap="wrap">
            <Counts counts={data.counts} onChoose={(state) => go({ state })} state={address.state} />
            <Filter onChange={(text) => go({ text })} text={address.text ?? ""} />
          </HStack>
          {data.topologies.length > 0 ? <Topologies lines={data.topologies} onAct={act} /> : <Text color="fg.muted">No topology is like that.</Text>}
          <Pages go={go} offset={data.offset} shown={data.topologies.length} total={data.total} />
        </>
      )}
      {dialog}
    </Box>
  );
}

/** How many topologies are in each state; a click shows only those, another click shows all. */
function Counts({ counts, state, onChoose }: { counts: Record<string, number>; state: StateCode | null; onChoose: (state: StateCode | null) => void }) {
  return (
    <HStack aria-label="Topologies by state" gap={2} role="group" wrap="wrap">
      {STATE_CODES.filter((code) => ALWAYS.includes(code) || code === state || (counts[code] ?? 0) > 0).map((code) => (
        <Button
          aria-pressed={code === state}
          key={code}
          onClick={() => onChoose(code === state ? null : code)}
          size="sm"
          variant={code === state ? "subtle" : "outline"}
        >
          <Text as="span" fontVariantNumeric="tabular-nums">
            {counts[code] ?? 0}
          </Text>
          <StateSign code={code} word={code} />
        </Button>
      ))}
    </HStack>
  );
}

/** A text that is asked for once a person has stopped typing. */
function Filter({ text, onChange }: { text: string; onChange: (text: string | null) => void }) {
  const [typed, setTyped] = useState(text);
  useEffect(() => {
    if (typed === text) return undefined;
    const timer = setTimeout(() => onChange(typed === "" ? null : typed), TYPING);
    return () => clearTimeout(timer);
  }, [typed, text, onChange]);
  return (
    <Input
      aria-label="Filter topologies"
      flex="1"
      maxLength={200}
      maxW="320px"
      minW="160px"
      onChange={(event) => setTyped(event.target.value)}
      placeholder="Filter by name, DAG or sentence"
      size="sm"
      type="search"
      value={typed}
    />
  );
}

function Pages({ offset, shown, total, go }: { offset: number; shown: number; total: number; go: (changes: Partial<Address>) => void }) {
  return (
    <HStack color="fg.muted" fontSize="sm" gap={3} mt={3} wrap="wrap">
      <Text>{shown === total ? counted(total, "topology", "topologies") : `${offset + 1} to ${offset + shown} of ${counted(total, "topology", "topologies")}`}</Text>
      {(offset > 0 || offset + shown < total) && (
        <>
          <Button disabled={offset === 0} onClick={() => go({ offset: offset > PAGE ? offset - PAGE : null })} size="xs" variant="outline">
            Previous
          </Button>
          <Button disabled={offset + shown >= total} onClick={() => go({ offset: offset + PAGE })} size="xs" variant="outline">
            Next
          </Button>
        </>
      )}
    </HStack>
  );
}

const WIDE = { base: "none", lg: "table-cell" };

function Topologies({ lines, onAct }: { lines: readonly TopologyLine[]; onAct: (asked: Asked) => void }) {
  const now = useNow();
  return (
    <Table.Root size="sm" tableLayout="auto">
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader>Topology</Table.ColumnHeader>
          <Table.ColumnHeader>State</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Source</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>
            <Term name="lag">Lag</Term>
          </Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>
            <Term name="open">Open</Term>
          </Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>
            <Term name="next">Next to commit</Term>
          </Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Last commit</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Commits an hour</Table.ColumnHeader>
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {lines.map((line) => (
          <Line key={line.topology} line={line} now={now} onAct={onAct} />
        ))}
      </Table.Body>
    </Table.Root>
  );
}

function Line({ line, now, onAct }: { line: TopologyLine; now: number; onAct: (asked: Asked) => void }) {
  const [, write] = useAddress();
  return (
    <Table.Row verticalAlign="top">
      <Table.Cell minW={{ lg: "140px" }}>
        <Styled asChild color="fg.info" fontWeight="semibold" overflowWrap="anywhere">
          <Link to={write({ topology: line.topology, txid: null, state: null, text: null, what: null, offset: null })}>{line.topology}</Link>
        </Styled>
        {line.paused && <Text color="fg.muted">DAG paused</Text>}
        {line.coordinator?.paused && <Text color="fg.muted">coordinator paused</Text>}
      </Table.Cell>
      <Table.Cell minW={{ base: "0", md: "260px" }} width={{ base: "68%", md: "45%" }}>
        <State state={line.state} />
        <Text color="fg.muted" overflowWrap="anywhere">
          {line.state.txid != null && line.state.sentence.startsWith(`Transaction ${line.state.txid} `) ? (
            <Sentence sentence={line.state.sentence} topology={line.topology} txid={line.state.txid} />
          ) : (
            line.state.sentence
          )}
        </Text>
        <AdviceLine advice={line.advice} named onAct={onAct} topology={line.topology} />
        <Text color="fg.muted" display={{ lg: "none" }} fontSize="xs" mt={1}>
          {`open ${line.open} of ${line.max_pending} · next to commit ${line.turn} · lag ${lagWords(line.lag, now)}`}
        </Text>
      </Table.Cell>
      <Table.Cell display={WIDE}>
        {line.source.kind}
        <Text color="fg.muted" maxW="220px" title={line.source.description ?? undefined} truncate>
          {line.source.description}
        </Text>
      </Table.Cell>
      <Table.Cell display={WIDE} title={line.lag.why ?? undefined} whiteSpace="nowrap">
        {lagWords(line.lag, now)}
      </Table.Cell>
      <Table.Cell display={WIDE} whiteSpace="nowrap">{`${line.open} of ${line.max_pending}`}</Table.Cell>
      <Table.Cell display={WIDE}>{line.turn}</Table.Cell>
      <Table.Cell display={WIDE} title={line.last_commit ? moment(line.last_commit.at) : undefined} whiteSpace="nowrap">
        {line.last_commit ? `${line.last_commit.txid}, ${ago(line.last_commit.at, now)}` : "none"}
      </Table.Cell>
      <Table.Cell display={WIDE}>
        <Sparkline values={line.commits_per_hour} />
      </Table.Cell>
    </Table.Row>
  );
}
