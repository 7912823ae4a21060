/** The tab of a DAG: its topology. */

import { Alert, Box, Button } from "@chakra-ui/react";
import { Link } from "react-router-dom";

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
  if (topology) {
    return (
      <>
        {address.txid === null ? <Topology inside topology={topology} /> : <Transaction topology={topology} txid={address.txid} />}
        <OwnPage topology={topology} txid={address.txid} />
      </>
    );
  }
  if (query.data) return <Note>No run of this DAG has begun a transaction yet.</Note>;
  return (
    <Box p={4}>
      <Trouble query={query} />
      <Loading query={query} />
    </Box>
  );
}

/** On a phone Airflow leaves a tab no room beside its grid of runs: a link to the page of its own lies above both. */
export function OwnPage({ topology, txid }: { topology: string; txid: number | null }) {
  const [, write] = useAddress();
  return (
    <Button asChild bottom={3} display={{ base: "inline-flex", md: "none" }} position="fixed" right={3} size="sm" zIndex="docked">
      <Link to={`/plugin/transactions${write({ topology, txid })}`}>{txid === null ? "Open the Transactions page" : `Open the page of transaction ${txid}`}</Link>
    </Button>
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
