/** The tab of a run: its transaction, or why it has none. */

import { Alert, Box } from "@chakra-ui/react";

import { AdviceLine } from "../actions/AdviceLine";
import { useActing } from "../actions/acting";
import { api } from "../api/client";
import { useLive } from "../api/live";
import { Loading } from "../parts/Loading";
import { Trouble } from "../parts/Trouble";
import { Transaction } from "../transaction/Transaction";
import { OwnPage } from "./DagTab";

export function RunTab({ dagId, runId }: { dagId: string; runId: string }) {
  const query = useLive(["run", dagId, runId], (signal) => api.run(dagId, runId, signal));
  const [act, dialog] = useActing();
  const run = query.data;
  if (run && run.topology !== null && run.txid !== null) {
    return (
      <>
        <Transaction topology={run.topology} txid={run.txid} />
        <OwnPage topology={run.topology} txid={run.txid} />
      </>
    );
  }
  if (run?.why) {
    return (
      <Box p={4}>
        <Alert.Root status="info">
          <Alert.Indicator />
          <Alert.Content>
            <Alert.Title overflowWrap="anywhere">{`This run has no transaction yet. ${run.why.sentence}`}</Alert.Title>
            <AdviceLine advice={run.why.advice} onAct={act} topology={run.topology ?? ""} />
          </Alert.Content>
        </Alert.Root>
        {dialog}
      </Box>
    );
  }
  return (
    <Box p={4}>
      <Trouble query={query} />
      <Loading query={query} />
    </Box>
  );
}
