/** The transactions that today's DAG would make otherwise: compared when a person asks for it. */

import { Button, HStack, Link as Styled, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router-dom";

import { ActionButtons } from "../actions/ActionButtons";
import { api, type StaleAnswer } from "../api/client";
import { Refused } from "../parts/Busy";
import { useAddress } from "../parts/address";
import { counted, moment } from "../parts/words";
import { Rows, Section } from "../transaction/facts";
import { outcome, restatement } from "./stale";

export function Stale({ topology, mayAct }: { topology: string; mayAct: boolean }) {
  const [asked, setAsked] = useState(false);
  const query = useQuery({
    enabled: asked,
    gcTime: 0,
    queryFn: ({ signal }) => api.stale(topology, signal),
    queryKey: ["stale", topology],
    retry: false,
    staleTime: Infinity,
  });
  const compare = () => {
    if (asked) void query.refetch();
    setAsked(true);
  };
  return (
    <Section title="Stale transactions">
      <Stack align="start" aria-live="polite" fontSize="sm" gap={2}>
        <Button loading={query.isFetching} onClick={compare} size="xs" variant="outline">
          Compare with the DAG file
        </Button>
        <Refused again={() => void query.refetch()} asking={query.isFetching} error={query.error} />
        {query.data && <Groups answer={query.data} mayAct={mayAct} onDone={() => void query.refetch()} topology={topology} />}
      </Stack>
    </Section>
  );
}

function Groups({ answer, topology, mayAct, onDone }: { answer: StaleAnswer; topology: string; mayAct: boolean; onDone: () => void }) {
  const [, write] = useAddress();
  const link = (txid: number | undefined, text: string) =>
    txid === undefined ? (
      ""
    ) : (
      <Styled asChild color="fg.info" key={txid}>
        <Link to={write({ topology, txid })}>{text}</Link>
      </Styled>
    );
  const byCode = answer.groups.some(({ reason }) => reason === "code");
  return (
    <>
      <Text>{outcome(answer)}</Text>
      {Object.entries(answer.unknown).map(([why, number]) => (
        <Text key={why}>{`Not compared: ${counted(number, "transaction")}, since ${why}.`}</Text>
      ))}
      {answer.groups.length > 0 && (
        <Rows
          headers={["Transactions", "Stale because", "Since", "Restatement"]}
          label="Stale transactions"
          rows={answer.groups.map((each) => [link(each.txids[0], each.transactions), each.what, each.since === null ? "" : moment(each.since), restatement(each.restatement)])}
        />
      )}
      {mayAct && answer.groups.some(({ txids }) => txids.length > 0) && (
        <HStack gap={2} wrap="wrap">
          <ActionButtons actions={["restate"]} label="Restate stale transactions" onDone={onDone} stale topology={topology} />
          {byCode && <ActionButtons actions={["accept-code"]} onDone={onDone} topology={topology} />}
        </HStack>
      )}
    </>
  );
}
