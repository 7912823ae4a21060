/** The tab of a run: its transaction, or why it has none. */

import { Box } from "@chakra-ui/react";

import { api } from "../api/client";
import { useLive } from "../api/live";
import { Loading } from "../parts/Loading";
import { Trouble } from "../parts/Trouble";
import { Transaction } from "../transaction/Transaction";
import { Note, OwnPage } from "./DagTab";

export function RunTab({ dagId, runId }: { dagId: string; runId: string }) {
  const query = useLive(["run", dagId, runId], (signal) => api.run(dagId, runId, signal));
  const run = query.data;
  if (run && run.topology !== null && run.txid !== null) {
    return (
      <>
        <Transaction topology={run.topology} txid={run.txid} />
        <OwnPage topology={run.topology} txid={run.txid} />
      </>
    );
  }
  if (run?.why) return <Note>{`This run is no transaction yet. ${run.why.sentence}`}</Note>;
  return (
    <Box p={4}>
      <Trouble query={query} />
      <Loading query={query} />
    </Box>
  );
}
