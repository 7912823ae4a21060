/** Says why what is shown is not fresh. */

import { Alert, Box } from "@chakra-ui/react";
import type { UseQueryResult } from "@tanstack/react-query";

import { Refusal } from "../api/client";
import { useTrouble } from "../api/live";
import { moment } from "./words";

/** A line above what was answered last; nothing while answers come, or while `Connection` says that none can come. */
export function Trouble({ query }: { query: UseQueryResult<unknown, Error> }) {
  const trouble = useTrouble(query);
  // What does not exist is said where it would stand.
  if (query.data === undefined && query.error instanceof Refusal && query.error.status === 404) return null;
  return (
    <Box aria-live="assertive" role="status">
      {trouble !== null && (
        <Alert.Root mb={2} size="sm" status="warning">
          <Alert.Indicator />
          <Alert.Content>
            <Alert.Title>{trouble}</Alert.Title>
            {query.data !== undefined && query.dataUpdatedAt > 0 && (
              <Alert.Description>This is how it was at {moment(query.dataUpdatedAt)}.</Alert.Description>
            )}
          </Alert.Content>
        </Alert.Root>
      )}
    </Box>
  );
}
