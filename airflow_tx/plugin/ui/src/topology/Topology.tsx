/** One topology: how it is, its transactions over time, and what else the ledger keeps. */

import { Box, Flex, Heading, HStack, Link as Styled, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";

import { ActionButtons } from "../actions/ActionButtons";
import { AdviceLine } from "../actions/AdviceLine";
import { useActing } from "../actions/acting";
import { RestateDays } from "../actions/RestateDays";
import { api, type ActionName, type TopologyPage } from "../api/client";
import { useLive, useNow } from "../api/live";
import { lagWords } from "../overview/lag";
import { Loading } from "../parts/Loading";
import { Term } from "../parts/Term";
import { Trouble } from "../parts/Trouble";
import { useAddress } from "../parts/address";
import { State } from "../parts/phase";
import { ago, counted } from "../parts/words";
import { Timeline } from "../timeline/Timeline";
import { Jobs, useJobs } from "./Jobs";
import { Kept } from "./Kept";
import { Search } from "./Search";
import { Stale } from "./Stale";

/** @param inside whether it stands in the tab of its DAG, which has a heading of its own. */
export function Topology({ topology, inside = false }: { topology: string; inside?: boolean }) {
  const query = useLive(["topology", topology], (signal) => api.topology(topology, signal));
  const [, write] = useAddress();
  return (
    <Box p={{ base: 3, md: 4 }}>
      {!inside && (
        <Styled asChild color="fg.info" fontSize="sm" mb={2}>
          <Link to={write({ topology: null, txid: null })}>← All topologies</Link>
        </Styled>
      )}
      <Trouble query={query} />
      {query.data ? <Summary page={query.data} /> : <Loading query={query} />}
      {query.data && <Jobs coordinated={query.data.coordinator?.paused === false} key={`jobs ${topology}`} mayAct={query.data.may_act} paused={query.data.paused === true} topology={topology} />}
      {query.data && <Search key={`search ${topology}`} topology={topology} />}
      {query.data && <Timeline key={topology} mayAct={query.data.may_act} topology={topology} />}
      {query.data && <Stale key={`stale ${topology}`} mayAct={query.data.may_act} topology={topology} />}
      {query.data && <Kept page={query.data} />}
    </Box>
  );
}

function Summary({ page }: { page: TopologyPage }) {
  const now = useNow();
  const [act, dialog] = useActing();
  return (
    <Stack gap={1} mb={3}>
      <Flex align="center" gap={3} justify="space-between" wrap="wrap">
        <HStack gap={3} minW={0}>
          <Heading as="h1" overflowWrap="anywhere" size="lg">
            {page.topology}
          </Heading>
          <State state={page.state} />
        </HStack>
        {page.may_act && <Buttons page={page} />}
      </Flex>
      <Text overflowWrap="anywhere">
        {page.state.sentence} <SeenTo state={page.state} topology={page.topology} />
      </Text>
      <AdviceLine advice={page.advice} named onAct={act} topology={page.topology} />
      {dialog}
      <Causes causes={page.causes} topology={page.topology} />
      <HStack as="ul" color="fg.muted" columnGap={4} fontSize="sm" listStyleType="none" rowGap={0} wrap="wrap">
        {facts(page, now).map((fact, index) => (
          <Text as="li" key={index} overflowWrap="anywhere">
            {fact}
          </Text>
        ))}
      </HStack>
    </Stack>
  );
}

/** A link to the transaction that is to be seen to. */
function SeenTo({ state, topology }: { state: TopologyPage["state"]; topology: string }) {
  const [, write] = useAddress();
  if (state.code === "fine" || state.txid == null) return null;
  return (
    <Styled asChild color="fg.info">
      <Link to={write({ topology, txid: state.txid })}>{`Show transaction ${state.txid}`}</Link>
    </Styled>
  );
}

/** Transactions that fail by one cause: their number and the cause, and links to them for a person who opens it. */
function Causes({ causes, topology }: Pick<TopologyPage, "causes" | "topology">) {
  const [, write] = useAddress();
  return causes.map(({ sentence, txids }) => (
    <Box asChild fontSize="sm" key={txids[0]} overflowWrap="anywhere">
      <details>
        <summary style={{ cursor: "pointer" }}>{`${counted(txids.length, "transaction")}: ${sentence}`}</summary>
        <HStack columnGap={3} ps={4} rowGap={0} wrap="wrap">
          {txids.map((txid) => (
            <Styled asChild color="fg.info" key={txid}>
              <Link to={write({ topology, txid })}>{`Transaction ${txid}`}</Link>
            </Styled>
          ))}
        </HStack>
      </details>
    </Box>
  ));
}

function ackersWords(ackers: NonNullable<TopologyPage["ackers"]>): string {
  const acks = ackers.acks_a_second == null ? "" : `, ${ackers.acks_a_second.toFixed(1)} acks a second`;
  return `${counted(ackers.trees, "open tree")} of messages${acks}`;
}

function facts(page: TopologyPage, now: number): ReactNode[] {
  return [
    `source ${[page.source.description, page.source.kind].filter(Boolean).join(", ")}`,
    <>
      <Term name="lag">lag</Term>
      {` ${lagWords(page.lag, now)}${page.lag.why ? ` (${page.lag.why})` : ""}`}
    </>,
    <>
      <Term name="open">open</Term>
      {` ${page.open} of ${page.max_pending}`}
    </>,
    <>
      <Term name="next">next to commit</Term>
      {` ${page.turn}`}
    </>,
    page.upstream && `reads ${page.upstream}`,
    page.behind.length > 0 && `${counted(page.behind.length, "transaction")} behind corrections: ${page.behind.join(", ")}`,
    page.ackers ? ackersWords(page.ackers) : "",
    page.last_commit ? `last commit ${page.last_commit.txid}, ${ago(page.last_commit.at, now)}` : "no commit yet",
    page.paused === null ? "the DAG is not in Airflow" : page.paused ? "DAG paused" : "",
    page.coordinator ? `coordinator ${page.coordinator.dag_id}${page.coordinator.paused ? ", paused" : ""}` : "",
  ].filter(Boolean);
}

function Buttons({ page }: { page: TopologyPage }) {
  const actions: ActionName[] = ["replay-failed", "accept-loss"];
  if (page.coordinator) actions.push(page.coordinator.paused ? "unpause" : "pause");
  const dated = useJobs(page.topology).data?.dated === true;
  return (
    <HStack gap={2} key={page.topology} wrap="wrap">
      {dated && <RestateDays topology={page.topology} />}
      {page.behind.length > 0 && <ActionButtons actions={["restate"]} follow label="Restate transactions that are behind" topology={page.topology} />}
      <ActionButtons actions={actions} topology={page.topology} />
    </HStack>
  );
}
