/** Which transaction counted a file, an offset, an id or a date. */

import { Box, Link as Styled, List, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState, type FormEvent } from "react";
import { Link } from "react-router-dom";

import { api, type SearchAnswer } from "../api/client";
import { Refused } from "../parts/Busy";
import { SearchField } from "../parts/SearchField";
import { useAddress } from "../parts/address";
import { phaseWord, restatementWords } from "../parts/phase";
import { counted } from "../parts/words";

export function Search({ topology }: { topology: string }) {
  const [typed, setTyped] = useState("");
  const [what, setWhat] = useState("");
  const query = useQuery({
    enabled: what !== "",
    gcTime: 0,
    queryFn: ({ signal }) => api.search(topology, what, signal),
    queryKey: ["search", topology, what],
    retry: false,
    staleTime: Infinity,
  });
  const ask = (event: FormEvent) => {
    event.preventDefault();
    if (typed.trim() === what) void query.refetch();
    setWhat(typed.trim());
  };
  return (
    <Box mb={3}>
      <form onSubmit={ask}>
        <SearchField
          aria-label="Find a transaction"
          asking={query.isFetching}
          maxW="360px"
          placeholder="File, offset, id or date"
          setTyped={setTyped}
          typed={typed}
        />
      </form>
      <Box aria-live="polite" fontSize="sm" mt={query.data || query.error ? 2 : 0}>
        <Refused again={() => void query.refetch()} asking={query.isFetching} error={query.error} />
        {query.data && what !== "" && <Results answer={query.data} topology={topology} what={what} />}
      </Box>
    </Box>
  );
}

function Results({ answer, topology, what }: { answer: SearchAnswer; topology: string; what: string }) {
  const [, write] = useAddress();
  return (
    <>
      <Text overflowWrap="anywhere">{outcome(answer, what)}</Text>
      <List.Root ps={4}>
        {answer.found.map((each) => (
          <List.Item key={each.txid}>
            <Styled asChild color="fg.info">
              <Link to={write({ topology, txid: each.txid })}>{`Transaction ${each.txid}`}</Link>
            </Styled>
            {[each.phase && phaseWord({ phase: each.phase, blocked: null }), restatementWords(each), each.batch_name, each.run_id && `run ${each.run_id}`]
              .filter(Boolean)
              .map((word) => `, ${word}`)
              .join("")}
          </List.Item>
        ))}
      </List.Root>
    </>
  );
}

/** Says how many transactions have it, and how far the search went. */
export function outcome({ found, looked, oldest, unknown, complete }: SearchAnswer, what: string): string {
  const has = found.length === 0 ? `No transaction matches ${what}.` : `${counted(found.length, "transaction matches", "transactions match")} ${what}:`;
  const parts = [
    found.length > 0 && complete ? "" : oldest === null ? "The ledger has no transaction." : `Searched ${counted(looked, "transaction")}, down to transaction ${oldest}.`,
    unknown > 0 ? `The source cannot check ${counted(unknown, "transaction")}.` : "",
    complete ? "" : "There may be more matches.",
  ];
  return [...parts, has].filter(Boolean).join(" ");
}
