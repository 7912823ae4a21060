/** One transaction, whole. */

import { Alert, Box, Flex, Heading, HStack, Link as Styled, Stack, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import { ActionButtons } from "../actions/ActionButtons";
import { AdviceLine, advisedActions } from "../actions/AdviceLine";
import { useActing } from "../actions/acting";
import { api, type TransactionPage } from "../api/client";
import { useLive, useNow } from "../api/live";
import { AirflowLink } from "../parts/AirflowLink";
import { Loading } from "../parts/Loading";
import { Trouble } from "../parts/Trouble";
import { useAddress } from "../parts/address";
import { Phase, restatementWords } from "../parts/phase";
import { Comparison } from "./Comparison";
import { Life } from "./Life";
import { Audit, Batch, Checks, NewValues, Rejected, States, Tasks, Work } from "./sections";

export function Transaction({ topology, txid }: { topology: string; txid: number }) {
  const query = useLive(["transaction", topology, txid], (signal) => api.transaction(topology, txid, signal));
  return (
    <Box p={{ base: 3, md: 4 }}>
      <Path following={query.data?.following ?? null} previous={query.data?.previous ?? null} topology={topology} />
      <Trouble query={query} />
      {query.data ? <Whole page={query.data} /> : <Loading query={query} />}
    </Box>
  );
}

/** The way back, and to the transactions beside it that the ledger knows. */
function Path({ topology, previous, following }: { topology: string; previous: number | null; following: number | null }) {
  const [, write] = useAddress();
  return (
    <HStack as="nav" aria-label="Transactions" color="fg.muted" fontSize="sm" gap={3} justify="space-between" mb={2} wrap="wrap">
      <Styled asChild color="fg.info">
        <Link to={write({ topology, txid: null })}>{`← ${topology}`}</Link>
      </Styled>
      <HStack gap={3}>
        {previous !== null && (
          <Styled asChild color="fg.info">
            <Link to={write({ topology, txid: previous })}>{`← Transaction ${previous}`}</Link>
          </Styled>
        )}
        {following !== null && (
          <Styled asChild color="fg.info">
            <Link to={write({ topology, txid: following })}>{`Transaction ${following} →`}</Link>
          </Styled>
        )}
      </HStack>
    </HStack>
  );
}

function Whole({ page }: { page: TransactionPage }) {
  const now = useNow();
  return (
    <Stack gap={5}>
      <Stack gap={2}>
        <Flex align="center" gap={3} justify="space-between" wrap="wrap">
          <HStack columnGap={3} rowGap={0} wrap="wrap">
            <Heading as="h1" size="lg">{`Transaction ${page.txid}${page.attempt > 1 ? `.${page.attempt}` : ""}`}</Heading>
            <Phase row={page} />
            {restatementWords(page) && <Text color="fg.muted">{restatementWords(page)}</Text>}
            {page.batch_name && (
              <Text color="fg.muted" overflowWrap="anywhere">
                {page.batch_name}
              </Text>
            )}
          </HStack>
          {page.may_act && (
            <ActionButtons actions={others(page)} key={page.txid} topology={page.topology} txids={[page.txid]} />
          )}
        </Flex>
        <Why page={page} />
        <HStack fontSize="sm" gap={4} wrap="wrap">
          <AirflowLink path={page.links.run}>{`Run ${page.run_id}`}</AirflowLink>
          <AirflowLink path={page.links.dag}>{`DAG ${page.dag_id}`}</AirflowLink>
          <AirflowLink path={page.links.audit}>Audit log of the run</AirflowLink>
        </HStack>
      </Stack>
      <Life now={now} page={page} />
      <Batch page={page} />
      <Comparison page={page} />
      <Work page={page} />
      <Rejected key={page.txid} page={page} />
      <Checks page={page} />
      <Tasks now={now} page={page} />
      <States page={page} />
      <NewValues page={page} />
      <Audit page={page} />
    </Stack>
  );
}

/** Gives the actions whose buttons do not stand beside the sentence. */
function others(page: TransactionPage): TransactionPage["actions"] {
  const advised = advisedActions(page.advice).filter((each) => each.txids.includes(page.txid)).map((each) => each.action);
  return page.actions.filter((each) => !advised.includes(each));
}

/** Why it is not committed, and what helps. After a replay, also what led to it, and the log of that. */
function Why({ page }: { page: TransactionPage }) {
  const [act, dialog] = useActing();
  const { waits, reason, said, advice } = page;
  const before = page.comparison.at(-2);
  const log = reason === null ? (before?.tasks.find((task) => task.states.failed)?.log ?? null) : advice.log;
  const grave = page.blocked !== null || page.phase === "FAILED";
  return (
    <>
      {(waits !== null || reason !== null) && (
        <Alert.Root size="sm" status={grave ? "error" : "info"}>
          <Alert.Indicator />
          <Alert.Content minW={0}>
            {waits !== null && <Alert.Title overflowWrap="anywhere">{`Waits for ${waits}`}</Alert.Title>}
            {said !== null && (
              <Alert.Description asChild>
                <Text aria-label="Error" fontFamily="mono" fontSize="xs" maxH="160px" overflowY="auto" overflowWrap="anywhere" role="region" tabIndex={0} whiteSpace="pre-wrap">
                  {said}
                </Text>
              </Alert.Description>
            )}
            <AdviceLine advice={{ ...advice, log }} onAct={act} rows={page.refused} topology={page.topology} />
          </Alert.Content>
        </Alert.Root>
      )}
      {/* It stays where it is when the sentence is gone, to say what was done. */}
      {dialog}
    </>
  );
}
