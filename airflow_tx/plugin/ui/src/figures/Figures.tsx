/** Figures over the time that the timeline shows: a chart each, and one cursor in all of them. */

import { Box, Button, Heading, HStack, SimpleGrid, Text } from "@chakra-ui/react";
import { replaceEqualDeep } from "@tanstack/react-query";
import { useCallback, useRef, useState } from "react";
import { useNavigate } from "react-router-dom";

import { api, type Figures as Answer } from "../api/client";
import { useLive } from "../api/live";
import { Trouble } from "../parts/Trouble";
import { useAddress } from "../parts/address";
import { counted, duration, moment } from "../parts/words";
import { roundedSince } from "../timeline/rows";
import { Chart } from "./Chart";
import { charts, periodShown, spoken, type ChartData } from "./charts";

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
      <Charts figures={found.data} />
    </Box>
  );
}

function Charts({ figures }: { figures: Answer }) {
  const kept = useRef<ChartData[]>([]);
  // What has not changed stays the same object, which is not drawn again.
  const all = (kept.current = replaceEqualDeep(kept.current, charts(figures)));
  // The begin of the period at which a person points: its place changes as time goes on.
  const [at, setAt] = useState<string | null>(null);
  const { points, step } = figures;
  const found = points.findIndex(({ start }) => start === at);
  const index = found < 0 ? null : found;
  const [, write] = useAddress();
  const navigate = useNavigate();
  const newest = useRef({ points, step, write });
  newest.current = { points, step, write };
  const onPoint = useCallback((to: number | null) => setAt(to === null ? null : (newest.current.points[to]?.start ?? null)), []);
  const onChoose = useCallback(
    (of: number) => {
      const { points, step, write } = newest.current;
      const start = points[of]?.start;
      if (start !== undefined) void navigate(write(periodShown(Date.parse(start), step, Date.now())));
    },
    [navigate],
  );
  const period = index === null ? null : periodWords(points[index]!.start, step);
  return (
    <>
      <HStack gap={3} mb={2} wrap="wrap">
        <Box asChild focusVisibleRing="outside" style={{ accentColor: "var(--chakra-colors-blue-solid)" }} width={{ base: "100%", sm: "240px" }}>
          <input
            aria-label="Selected time of all charts"
            aria-valuetext={index === null ? "no time is selected" : `${period}. ${all.map((chart) => spoken(chart, index)).join(". ")}`}
            max={points.length - 1}
            min={0}
            onChange={(event) => onPoint(Number(event.target.value))}
            onKeyDown={(event) => {
              if (event.key === "Enter" && index !== null) onChoose(index);
              if (event.key === "Escape") onPoint(null);
            }}
            type="range"
            value={index ?? points.length - 1}
          />
        </Box>
        <Button disabled={index === null} onClick={() => index !== null && onChoose(index)} size="xs" variant="outline">
          Show the rows of this time
        </Button>
        <Text color="fg.muted" fontSize="sm">
          {period ?? "Point at a chart or move the slider to read the values at one time."}
        </Text>
      </HStack>
      <SimpleGrid columns={{ base: 1, md: 2, xl: 3 }} gap={3}>
        {all.map((chart) => (
          <Chart chart={chart} index={index} key={chart.title} onChoose={onChoose} onPoint={onPoint} />
        ))}
      </SimpleGrid>
    </>
  );
}

function periodWords(start: string, step: number): string {
  return `${moment(start)} to ${moment(Date.parse(start) + step * 1000)}`;
}

/** Says what the figures are of, and what is not known. */
function known(figures: Answer): string {
  const { total, since, until, step, known_since, untimed_replays } = figures;
  return [
    `${counted(total.transactions, "committed transaction")} from ${moment(since)} to ${moment(until)}. Each bar and each dot covers ${duration(step)}.`,
    known_since === null ? "" : `The known history of the ledger begins at ${moment(known_since)}. Earlier values are unknown.`,
    untimed_replays === 0 ? "" : `The ledger does not know the time of ${counted(untimed_replays, "earlier replay")}.`,
  ]
    .filter(Boolean)
    .join(" ");
}
