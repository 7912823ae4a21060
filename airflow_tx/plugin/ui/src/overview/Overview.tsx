/** A line per topology, or per cause by which several fail: those that need a person first. */

import { Box, Button, Heading, HStack, Input, Link as Styled, Table, Text } from "@chakra-ui/react";
import { useEffect, useState } from "react";
import { Link, useNavigate } from "react-router-dom";

import { AdviceLine, Sentence } from "../actions/AdviceLine";
import { useActing, type Asked as Act } from "../actions/acting";
import { api, type CauseLine, type TopologyLine, type TopologyList } from "../api/client";
import { useLive, useNow } from "../api/live";
import { Loading } from "../parts/Loading";
import { Term, Tip } from "../parts/Term";
import { Trouble } from "../parts/Trouble";
import { useAddress, type Address } from "../parts/address";
import { State, STATE_CODES, StateSign, type StateCode } from "../parts/phase";
import { ago, moment } from "../parts/words";
import { Find } from "./Find";
import { Sparkline } from "./Sparkline";
import { causeWords, inOrder, pageWords } from "./causes";
import { lagSize, lagWords } from "./lag";

const PAGE = 50;
const TYPING = 300;
/** States that the head always counts; the others where there is one. */
const ALWAYS: readonly StateCode[] = ["blocked", "failed", "late", "fine"];

export function Overview() {
  const [address, write] = useAddress();
  const navigate = useNavigate();
  const [act, dialog] = useActing();
  const asked = { state: address.state ? [address.state] : undefined, text: address.text ?? "", limit: PAGE, offset: address.offset ?? 0, grouped: true };
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
        <Text color="fg.muted">There is no topology yet. A DAG with a Transaction appears here once one of its runs has begun a transaction.</Text>
      )}
      {data && (data.total > 0 || filtered) && (
        <>
          <HStack gap={2} mb={3} wrap="wrap">
            <Counts counts={data.counts} onChoose={(state) => go({ state })} state={address.state} />
            <Filter onChange={(text) => go({ text })} text={address.text ?? ""} />
          </HStack>
          {data.total > 0 ? <Topologies asked={asked} list={data} onAct={act} /> : <Text color="fg.muted">No topology matches the filter.</Text>}
          <Pages lines={data.lines} offset={data.offset} onPage={(offset) => go({ offset: offset || null })} shown={data.topologies.length + data.causes.length} total={data.total} />
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
      placeholder="Filter by name, DAG or status text"
      size="sm"
      type="search"
      value={typed}
    />
  );
}

interface Paged {
  offset: number;
  /** How many lines there are on this page; on all of them: `lines`. */
  shown: number;
  lines: number;
  total: number;
  onPage: (offset: number) => void;
}

function Pages({ offset, shown, lines, total, onPage }: Paged) {
  return (
    <HStack color="fg.muted" fontSize="sm" gap={3} mt={3} wrap="wrap">
      <Text>{pageWords(offset, shown, lines, total)}</Text>
      {(offset > 0 || offset + shown < lines) && (
        <>
          <Button disabled={offset === 0} onClick={() => onPage(Math.max(offset - PAGE, 0))} size="xs" variant="outline">
            Previous
          </Button>
          <Button disabled={offset + shown >= lines} onClick={() => onPage(offset + PAGE)} size="xs" variant="outline">
            Next
          </Button>
        </>
      )}
    </HStack>
  );
}

const WIDE = { base: "none", lg: "table-cell" };
/** The columns beside the name. */
const BESIDE = 6;
/** On one line where there is room, else on three. */
const ONE_LINE = { base: "3", lg: "1" };

type Asked = Parameters<typeof api.topologies>[0];

function Topologies({ list, asked, onAct }: { list: TopologyList; asked: Asked; onAct: (asked: Act) => void }) {
  const now = useNow();
  return (
    <Table.Root size="sm" tableLayout={{ base: "auto", lg: "fixed" }}>
      <Table.Header>
        <Table.Row>
          <Table.ColumnHeader width={{ base: "28%", lg: "15%" }}>Topology</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE} width="10%">
            <Term name="lag">Lag</Term>
          </Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE} width="70px">
            <Term name="open">Open</Term>
          </Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE} width="84px">
            <Term name="next">Next to commit</Term>
          </Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE} width="14%">
            Last commit
          </Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE} width="186px">
            Commits per hour
          </Table.ColumnHeader>
          <Table.ColumnHeader>What helps</Table.ColumnHeader>
        </Table.Row>
      </Table.Header>
      {inOrder(list).map((each) =>
        "cause" in each ? (
          <Cause asked={asked} cause={each} key={`cause ${each.cause}`} now={now} onAct={onAct} />
        ) : (
          <Line key={each.topology} line={each} now={now} onAct={onAct} />
        ),
      )}
    </Table.Root>
  );
}

/** Topologies that fail by one cause: their number and the cause, and themselves when a person opens it. */
function Cause({ cause, asked, now, onAct }: { cause: CauseLine; asked: Asked; now: number; onAct: (asked: Act) => void }) {
  const [address, write] = useAddress();
  const navigate = useNavigate();
  const open = address.cause === cause.cause;
  const words = causeWords(cause);
  return (
    <>
      <Table.Body>
        <Table.Row>
          <Table.Cell colSpan={BESIDE + 1} maxW="0" p={0}>
            <Button
              aria-expanded={open}
              fontWeight="normal"
              height="auto"
              justifyContent="flex-start"
              onClick={() => void navigate(write({ cause: open ? null : cause.cause }), { replace: true })}
              p={2}
              size="sm"
              title={words}
              variant="ghost"
              whiteSpace="normal"
              width="100%"
            >
              <Text aria-hidden as="span" flexShrink={0} width="1em">
                {open ? "▾" : "▸"}
              </Text>
              <State state={cause} />
              <Text as="span" flex="1" lineClamp={ONE_LINE} minW={0} overflowWrap="anywhere" textAlign="start">
                {words}
              </Text>
              {cause.since && (
                <Text as="span" color="fg.muted" display={{ base: "none", lg: "inline" }} flexShrink={0}>
                  {`first ${ago(cause.since, now)}`}
                </Text>
              )}
            </Button>
          </Table.Cell>
        </Table.Row>
      </Table.Body>
      {open && <OfCause asked={asked} cause={cause} key={cause.cause} now={now} onAct={onAct} />}
    </>
  );
}

function OfCause({ cause, asked, now, onAct }: { cause: CauseLine; asked: Asked; now: number; onAct: (asked: Act) => void }) {
  const [offset, setOffset] = useState(0);
  const of = { ...asked, grouped: false, cause: cause.cause, offset };
  const query = useLive(["topologies", of], (signal) => api.topologies(of, signal));
  const { data } = query;
  return (
    <>
      {data?.topologies.map((line) => <Line key={line.topology} line={line} now={now} onAct={onAct} within />)}
      <Table.Body>
        <Table.Row>
          <Table.Cell colSpan={BESIDE + 1} pb={4} ps={WITHIN} pt={0}>
            <Trouble query={query} />
            {data === undefined ? (
              <Loading query={query} />
            ) : (
              <Pages lines={data.lines} offset={data.offset} onPage={setOffset} shown={data.topologies.length} total={data.total} />
            )}
          </Table.Cell>
        </Table.Row>
      </Table.Body>
    </>
  );
}

/** How far the topologies of a cause are moved in. */
const WITHIN = 6;

/** Two rows: what is wrong, and below it the figures and the buttons. */
function Line({ line, now, onAct, within = false }: { line: TopologyLine; now: number; onAct: (asked: Act) => void; within?: boolean }) {
  const [, write] = useAddress();
  const { state, advice } = line;
  const pauses = [line.paused && "DAG paused", line.coordinator?.paused && "coordinator paused"].filter(Boolean).join(", ");
  return (
    <Table.Body>
      <Table.Row verticalAlign="top">
        <Table.Cell pb={1} ps={within ? WITHIN : undefined} rowSpan={2}>
          <Tip text={<TipWords line={line} />}>
            <Styled asChild color="fg.info" display="block" fontWeight="semibold" lineClamp={{ base: "3", lg: pauses ? "1" : "2" }} overflowWrap="anywhere">
              <Link to={write({ topology: line.topology, txid: null, state: null, text: null, what: null, cause: null, offset: null })}>{line.topology}</Link>
            </Styled>
          </Tip>
          {pauses && (
            <Text color="fg.muted" fontSize="xs" title={pauses} truncate>
              {pauses}
            </Text>
          )}
        </Table.Cell>
        <Table.Cell borderBottomWidth={0} colSpan={BESIDE} maxW="0" pb={0}>
          <Box alignItems="center" display={{ lg: "flex" }} gap={2}>
            <State state={state} />
            <Text color="fg.muted" flex="1" lineClamp={ONE_LINE} minW={0} overflowWrap="anywhere" title={[state.sentence, advice.remedy].filter(Boolean).join(" ")}>
              {state.txid != null && state.rest != null ? (
                <Sentence rest={state.rest} topology={line.topology} txid={state.txid} />
              ) : (
                state.sentence
              )}
              {advice.remedy && ` ${advice.remedy}`}
            </Text>
          </Box>
        </Table.Cell>
      </Table.Row>
      <Table.Row verticalAlign="middle">
        <Table.Cell display={WIDE} pb={1} pt={1} title={line.lag.why ?? lagWords(line.lag, now)}>
          {lagSize(line.lag)}
        </Table.Cell>
        <Table.Cell display={WIDE} pb={1} pt={1} whiteSpace="nowrap">{`${line.open} of ${line.max_pending}`}</Table.Cell>
        <Table.Cell display={WIDE} pb={1} pt={1}>{line.turn}</Table.Cell>
        <Table.Cell display={WIDE} pb={1} pt={1} title={line.last_commit ? moment(line.last_commit.at) : undefined}>
          {line.last_commit ? `${line.last_commit.txid}, ${ago(line.last_commit.at, now)}` : "none"}
        </Table.Cell>
        <Table.Cell display={WIDE} pb={1} pt={1}>
          <Sparkline values={line.commits_per_hour} />
        </Table.Cell>
        <Table.Cell pb={1} pt={1}>
          <Text color="fg.muted" display={{ lg: "none" }} fontSize="xs" mb={1}>
            {`open ${line.open} of ${line.max_pending} · next to commit ${line.turn} · lag ${lagWords(line.lag, now)}`}
          </Text>
          <AdviceLine advice={advice} brief named onAct={onAct} topology={line.topology} />
        </Table.Cell>
      </Table.Row>
    </Table.Body>
  );
}

/** The whole name, and the source. */
function TipWords({ line: { topology, source } }: { line: TopologyLine }) {
  return (
    <>
      <Text fontWeight="semibold">{topology}</Text>
      <Text>{`source ${[source.description, source.kind].filter(Boolean).join(", ")}`}</Text>
    </>
  );
}
