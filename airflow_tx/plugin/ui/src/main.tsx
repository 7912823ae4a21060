/** The page *Transactions* of Airflow: in the navigation, as a tab of a DAG, and as a tab of a run. */

import { Box } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";

import { Overview } from "./overview/Overview";
import { Connection } from "./parts/Connection";
import { Words } from "./parts/Term";
import { useAddress } from "./parts/address";
import { DagTab } from "./tabs/DagTab";
import { RunTab } from "./tabs/RunTab";
import { Topology } from "./topology/Topology";
import { Transaction } from "./transaction/Transaction";

interface Props {
  dagId?: string;
  runId?: string;
}

// One for as long as Airflow's page lives: what was answered is there at once when the board is opened again.
// A question without a network fails at once: it must not wait unseen.
const queries = new QueryClient({ defaultOptions: { mutations: { networkMode: "always" }, queries: { networkMode: "always", refetchOnReconnect: true } } });

export default function Board(props: Props) {
  return (
    <QueryClientProvider client={queries}>
      <Box data-testid="board">
        <Connection>
          <View {...props} />
        </Connection>
      </Box>
    </QueryClientProvider>
  );
}

function View({ dagId, runId }: Props) {
  const [{ topology, txid, word }] = useAddress();
  if (word !== null) return <Words word={word} />;
  if (dagId && runId) return <RunTab dagId={dagId} runId={runId} />;
  if (dagId) return <DagTab dagId={dagId} />;
  if (topology !== null && txid !== null) return <Transaction topology={topology} txid={txid} />;
  if (topology !== null) return <Topology topology={topology} />;
  return <Overview />;
}
