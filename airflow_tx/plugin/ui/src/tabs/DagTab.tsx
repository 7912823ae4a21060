/** The tab of a DAG: its topology. */

import { Alert, Box } from "@chakra-ui/react";

import { api } from "../api/client";
import { useLive } from "../api/live";
import { Loading } from "../parts/Loading";
import { Trouble } from "../parts/Trouble";
import { useAddress } from "../parts/address";
import { Topology } from "../topology/Topology";
import { Transaction } from "../transaction/Transaction";

const RARELY = 10_000;

export function DagTab({ dagId }: { dagId: string }) {
  const query = useLive(["dag", dagId], (signal) => api.dag(dagId, signal), { every: RARELY });
  const [address] = useAddress();
  const topology = query.data?.topology;
  if (topology && address.txid !== null) return <Transaction topology={topology} txid={address.txid} />;
  if (topology) return <Topology inside topology={topology} />;
  if (query.data) return <Note>None of its runs has begun a transaction yet.</Note>;
  return (
    <Box p={4}>
      <Trouble query={query} />
      <Loading query={query} />
    </Box>
  );
}

export function Note({ children }: { children: string }) {
  return (
    <Box p={4}>
      <Alert.Root status="info">
        <Alert.Indicator />
        <Alert.Title overflowWrap="anywhere">{children}</Alert.Title>
      </Alert.Root>
    </Box>
  );
}
