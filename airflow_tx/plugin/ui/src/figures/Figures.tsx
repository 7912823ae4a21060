/** Figures over time: one small chart each, over the time that the timeline shows. */

import { Box, Heading, SimpleGrid, Text } from "@chakra-ui/react";

import { api, type Figures as Answer } from "../api/client";
import { useLive } from "../api/live";
import { Trouble } from "../parts/Trouble";
import { count, counted, duration, moment } from "../parts/words";
import { roundedSince } from "../timeline/rows";
import { Chart } from "./Chart";
import { charts, type ChartData } from "./charts";

const EVERY = 10_000;

export function Figures({ topology, range, until, now }: { topology: string; range: number; until: number | null; now: number }) {
  const query: { since: string; until?: string } = { since: new Date(roundedSince(until ?? now, range)).toISOString() };
  if (until !== null) query.until = new Date(until).toISOString();
  const found = useLive(["figures", topology, query], (signal) => api.figures(topology, query, signal), { every: EVERY });
  if (found.data === undefined) return <Trouble query={found} />;
  return (
    <Box as="section" mt={5}>
      <Heading as="h2" mb={1} size="sm">
        Figures
      </Heading>
      <Trouble query={found} />
      <Text color="fg.muted" fontSize="sm" mb={2}>
        {known(found.data)}
      </Text>
      <SimpleGrid columns={{ base: 1, sm: 2, lg: 3, xl: 5 }} gap={3}>
        {charts(found.data, { seconds: duration, whole: (value) => count(Math.round(value)) }).map((chart) => (
          <Small chart={chart} key={chart.title} />
        ))}
      </SimpleGrid>
    </Box>
  );
}

function Small({ chart }: { chart: ChartData }) {
  return (
    <Box borderColor="border" borderRadius="sm" borderWidth="1px" minW={0} p={2}>
      <Text fontSize="sm" fontWeight="semibold">
        {chart.title}
      </Text>
      <Text color="fg.muted" fontSize="xs" minH="2.6em">
        {chart.words}
      </Text>
      <Chart chart={chart} />
    </Box>
  );
}

/** Says what the figures are of, and from when on they are whole. */
function known(figures: Answer): string {
  const many = `${counted(figures.total.transactions, "committed transaction")} from ${moment(figures.since)} to ${moment(figures.until)}.`;
  if (figures.known_since === null) return many;
  return `${many} The ledger's history, or what is counted of it, begins at ${moment(figures.known_since)}: nothing is known of the time before.`;
}
