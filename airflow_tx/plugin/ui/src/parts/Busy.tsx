/** Says why a question was refused; one that was refused because others are under way is asked again by itself. */

import { Alert, Button } from "@chakra-ui/react";
import { useEffect, useRef } from "react";

import { Refusal } from "../api/client";

/** Says how long to wait before a question is asked again, in milliseconds; null: nothing but a person helps. */
export function waits(error: Error | null): number | null {
  return error instanceof Refusal && error.busy ? error.again * 1000 : null;
}

/** Asks again after a while, as long as the refusal is shown. */
export function useAgain(error: Error | null, again: () => void): void {
  const latest = useRef(again);
  useEffect(() => {
    latest.current = again;
  });
  useEffect(() => {
    const milliseconds = waits(error);
    if (milliseconds === null) return undefined;
    const timer = setTimeout(() => latest.current(), milliseconds);
    return () => clearTimeout(timer);
  }, [error]);
}

/** @param again asks the same once more. */
export function Refused({ error, again, asking, grave = false }: { error: Error | null; again: () => void; asking: boolean; grave?: boolean }) {
  useAgain(error, again);
  if (error === null) return null;
  const busy = waits(error) !== null;
  return (
    <Alert.Root alignItems="start" role="alert" size="sm" status={grave && !busy ? "error" : "warning"}>
      <Alert.Indicator />
      <Alert.Content gap={2}>
        <Alert.Description overflowWrap="anywhere">
          {error instanceof Refusal ? error.message : "Airflow's api-server cannot be reached."}
        </Alert.Description>
        {busy && (
          <Button alignSelf="start" loading={asking} loadingText="Trying again" onClick={again} size="xs" variant="outline">
            Try again
          </Button>
        )}
      </Alert.Content>
    </Alert.Root>
  );
}
