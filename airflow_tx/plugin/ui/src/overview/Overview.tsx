/** A line per topology: those that need a person first. */

import { Box, Heading, Input, Link as Styled, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link } from "react-router-dom";

import { api, type TopologyLine } from "../api/client";
import { useLive, useNow } from "../api/live";
import { Loading } from "../parts/Loading";
import { Trouble } from "../parts/Trouble";
import { useAddress } from "../parts/address";
import { State, urgency } from "../parts/phase";
import { ago, moment } from "../parts/words";
import { Sparkline } from "./Sparkline";
import { lagWords } from "./lag";

const MANY = 8;

export function Overview() {
  const query = useLive(["topologies"], api.topologies);
  const [filter, setFilter] = useState("");
  const all = query.data?.topologies ?? [];
  const shown = all.filter((line) => line.topology.includes(filter) || line.dag_id.includes(filter));
  return (
    <Box p={{ base: 3, md: 4 }}>
      <Heading as="h1" mb={3} size="lg">
        Transactions
      </Heading>
      <Trouble query={query} />
      {all.length > MANY && (
        <Input aria-label="Filter topologies" maxW="320px" mb={3} onChange={(event) => setFilter(event.target.value)} placeholder="Filter topologies" size="sm" value={filter} />
      )}
      {query.data === undefined && <Loading query={query} />}
      {query.data && all.length === 0 && (
        <Text color="fg.muted">There is no topology yet. A DAG with a Transaction appears here once a run of it has begun.</Text>
      )}
      {shown.length > 0 && <Topologies lines={ordered(shown)} />}
    </Box>
  );
}

/** Orders topologies: the most urgent first, then by name. */
export function ordered(lines: readonly TopologyLine[]): TopologyLine[] {
  return [...lines].sort((a, b) => urgency(a.state) - urgency(b.state) || a.topology.localeCompare(b.topology));
}

const WIDE = { base: "none", lg: "table-cell" };

function Topologies({ lines }: { lines: TopologyLine[] }) {
  const now = useNow();
  return (
    <Table.Root size="sm" tableLayout="auto">
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader>Topology</Table.ColumnHeader>
          <Table.ColumnHeader>State</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Source</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Lag</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Open</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Turn</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Last commit</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Commits an hour</Table.ColumnHeader>
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {lines.map((line) => (
          <Line key={line.topology} line={line} now={now} />
        ))}
      </Table.Body>
    </Table.Root>
  );
}

function Line({ line, now }: { line: TopologyLine; now: number }) {
  const [, write] = useAddress();
  return (
    <Table.Row verticalAlign="top">
      <Table.Cell minW={{ lg: "140px" }}>
        <Styled asChild color="fg.info" fontWeight="semibold" overflowWrap="anywhere">
          <Link to={write({ topology: line.topology, txid: null })}>{line.topology}</Link>
        </Styled>
        {line.paused && <Text color="fg.muted">DAG paused</Text>}
        {line.coordinator?.paused && <Text color="fg.muted">coordinator paused</Text>}
      </Table.Cell>
      <Table.Cell minW={{ base: "0", md: "260px" }} width="45%">
        <State state={line.state} />
        <Text color="fg.muted" overflowWrap="anywhere">
          {line.state.sentence}
        </Text>
        {line.state.remedy && <Text overflowWrap="anywhere">{`What to do: ${line.state.remedy}`}</Text>}
        <Text color="fg.muted" display={{ lg: "none" }} fontSize="xs" mt={1}>
          {`open ${line.open} of ${line.max_pending} · turn ${line.turn} · lag ${lagWords(line.lag)}`}
        </Text>
      </Table.Cell>
      <Table.Cell display={WIDE}>
        {line.source.kind}
        <Text color="fg.muted" maxW="220px" title={line.source.description ?? undefined} truncate>
          {line.source.description}
        </Text>
      </Table.Cell>
      <Table.Cell display={WIDE} title={line.lag.why ?? undefined} whiteSpace="nowrap">
        {lagWords(line.lag)}
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
