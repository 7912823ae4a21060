/** Says that the page is not live: why, of when it is, and when it tries again. */

import { Alert, Box } from "@chakra-ui/react";
import type { ReactNode } from "react";

import { LostContext, useConnection } from "../api/live";
import { duration, moment } from "./words";

export function Connection({ children }: { children: ReactNode }) {
  const lost = useConnection();
  return (
    <LostContext.Provider value={lost}>
      <Box aria-live="polite" position="sticky" role="status" top={0} zIndex="docked">
        {lost !== null && (
          <Alert.Root borderRadius={0} size="sm" status="warning">
            <Alert.Indicator />
            <Alert.Content>
              <Alert.Title>{lost.why}</Alert.Title>
              <Alert.Description>
                {lost.since !== null && `The page shows the state of ${moment(lost.since)}. `}
                {`The page tries again every ${duration(lost.again)}.`}
              </Alert.Description>
            </Alert.Content>
          </Alert.Root>
        )}
      </Box>
      {children}
    </LostContext.Provider>
  );
}
