/** Which transactions of all topologies have a text: a file, a run, a txid, a date or an error. */

import { Box, Button, Field, Flex, Heading, Link as Styled, Table, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState, type FormEvent } from "react";
import { Link, useNavigate } from "react-router-dom";

import { api } from "../api/client";
import { Refused } from "../parts/Busy";
import { SearchField } from "../parts/SearchField";
import { useAddress } from "../parts/address";
import { Phase } from "../parts/phase";
import { extent, matchWords, shownMatch, type FoundLine } from "./found";

/** It stands apart from the filter of topologies, has a visible name, and asks only when a person sends it. */
export function Find() {
  const [address, write] = useAddress();
  const navigate = useNavigate();
  const what = address.what ?? "";
  const [typed, setTyped] = useState(what);
  useEffect(() => setTyped(what), [what]);
  const chosen = { state: address.state ? [address.state] : undefined, text: address.text ?? "" };
  const query = useQuery({
    enabled: what !== "",
    gcTime: 0,
    queryFn: ({ signal }) => api.searchAll({ what, ...chosen }, signal),
    queryKey: ["search of all", what, chosen],
    retry: false,
    staleTime: Infinity,
  });
  const ask = (event: FormEvent) => {
    event.preventDefault();
    if (typed.trim() === what) void query.refetch();
    else void navigate(write({ what: typed.trim() || null }));
  };
  return (
    <Box as="section" aria-label="Find transactions" mb={4}>
      <form onSubmit={ask}>
        <Field.Root>
          <Field.Label>Find transactions</Field.Label>
          <Box maxW="520px" width="100%">
            <SearchField asking={query.isFetching} placeholder="File, run id, txid, date or error" setTyped={setTyped} typed={typed} />
          </Box>
        </Field.Root>
      </form>
      <Box aria-live="polite">
        {what !== "" && (query.data !== undefined || query.error !== null) && (
          <Box bg="bg.subtle" borderRadius="sm" mt={2} p={3}>
            <Flex align="start" gap={3} justify="space-between">
              <Heading as="h2" overflowWrap="anywhere" size="sm">{`Transactions that match ${what}`}</Heading>
              <Button onClick={() => void navigate(write({ what: null }))} size="xs" variant="outline">
                Close
              </Button>
            </Flex>
            <Box mt={query.error ? 2 : 0}>
              <Refused again={() => void query.refetch()} asking={query.isFetching} error={query.error} />
            </Box>
            {query.data && (
              <>
                <Text fontSize="sm" mt={1} overflowWrap="anywhere">
                  {extent(query.data)}
                </Text>
                {query.data.found.length > 0 && <Found lines={query.data.found} what={what} />}
              </>
            )}
          </Box>
        )}
      </Box>
    </Box>
  );
}

const WIDE = { base: "none", md: "table-cell" };

function Found({ lines, what }: { lines: readonly FoundLine[]; what: string }) {
  const [, write] = useAddress();
  return (
    <Table.Root mt={2} size="sm">
      <Table.Header>
        <Table.Row bg="transparent">
          <Table.ColumnHeader>Transaction</Table.ColumnHeader>
          <Table.ColumnHeader>Status</Table.ColumnHeader>
          <Table.ColumnHeader display={WIDE}>Matched</Table.ColumnHeader>
        </Table.Row>
      </Table.Header>
      <Table.Body>
        {lines.map((line) => (
          <Table.Row bg="transparent" key={`${line.topology} ${line.txid}`} verticalAlign="top">
            <Table.Cell>
              <Styled asChild color="fg.info" overflowWrap="anywhere">
                <Link to={write({ topology: line.topology, txid: line.txid, state: null, text: null, what: null, offset: null })}>{`${line.topology}, ${line.txid}`}</Link>
              </Styled>
              <Text color="fg.muted" display={{ md: "none" }} fontSize="xs" overflowWrap="anywhere">
                {`${matchWords(line)} ${shownMatch(line, what)}`}
              </Text>
            </Table.Cell>
            <Table.Cell>
              {line.phase && <Phase row={{ phase: line.phase, blocked: null }} />}
              {line.restated_by != null && <Text color="fg.muted">{`restated by ${line.restated_by}`}</Text>}
            </Table.Cell>
            <Table.Cell display={WIDE} overflowWrap="anywhere">
              <Text as="span" color="fg.muted">{`${matchWords(line)} `}</Text>
              {shownMatch(line, what)}
            </Table.Cell>
          </Table.Row>
        ))}
      </Table.Body>
    </Table.Root>
  );
}
