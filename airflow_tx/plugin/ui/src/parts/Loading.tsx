/** What stands where an answer will be. */

import { Alert, Skeleton, Stack } from "@chakra-ui/react";
import type { UseQueryResult } from "@tanstack/react-query";

import { Refusal } from "../api/client";

/** Says that something is loaded; or, of what does not exist or may not be seen, that. */
export function Loading({ query }: { query: UseQueryResult<unknown, Error> }) {
  if (query.error instanceof Refusal && query.error.status === 404) {
    return (
      <Alert.Root status="info">
        <Alert.Indicator />
        <Alert.Title overflowWrap="anywhere">{query.error.message}</Alert.Title>
      </Alert.Root>
    );
  }
  return (
    <Stack aria-busy aria-label="Loading" role="status">
      <Skeleton height="24px" width="40%" />
      <Skeleton height="120px" />
    </Stack>
  );
}
