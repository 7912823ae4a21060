/** Many transactions that a person wanted at once: a bar each, for every viewer, until a day after its end. */

import { Box, Flex, HStack, Stack, Text } from "@chakra-ui/react";

import { ActionButtons } from "../actions/ActionButtons";
import { api, type JobLine } from "../api/client";
import { useLive } from "../api/live";
import { moment } from "../parts/words";
import { isOver, notes, progress } from "./jobs";

interface Props {
  topology: string;
  mayAct: boolean;
  /** Whether a coordinator starts what waits. */
  coordinated: boolean;
  /** Whether its DAG is paused, so that no run starts. */
  paused: boolean;
}

export function useJobs(topology: string) {
  return useLive(["jobs", topology], (signal) => api.jobs(topology, signal));
}

export function Jobs({ topology, mayAct, coordinated, paused }: Props) {
  const jobs = useJobs(topology).data?.jobs ?? [];
  if (jobs.length === 0) return null;
  return (
    <Stack as="section" aria-label="Jobs" gap={2} mb={3}>
      {jobs.map((job) => (
        <Job coordinated={coordinated} paused={paused} job={job} key={`${job.kind} ${job.since} ${job.who}`} mayAct={mayAct} topology={topology} />
      ))}
    </Stack>
  );
}

function Job({ job, topology, mayAct, coordinated, paused }: Props & { job: JobLine }) {
  const waits = job.waiting_txids.length > 0;
  return (
    <Box bg="bg.subtle" borderRadius="sm" p={3}>
      <Flex columnGap={3} justify="space-between" rowGap={1} wrap="wrap">
        <Text fontWeight="semibold">{`${title(job)}: ${progress(job)}`}</Text>
        {mayAct && (
          <HStack gap={2} wrap="wrap">
            {job.failed_txids.length > 0 && <ActionButtons actions={["replay"]} label="Replay failed transactions" topology={topology} txids={job.failed_txids} />}
            {waits && <ActionButtons actions={["restate"]} label="Start waiting restatements" topology={topology} />}
            {waits && <ActionButtons actions={["withdraw"]} label="Do not restate waiting transactions" topology={topology} txids={job.waiting_txids} />}
          </HStack>
        )}
      </Flex>
      <Bar job={job} />
      <Text color="fg.muted" fontSize="sm" overflowWrap="anywhere">
        {[job.who && `by ${job.who}`, moment(job.since), job.why].filter(Boolean).join(", ")}
      </Text>
      {[...notes(job), paused && !isOver(job) && "The DAG is paused and starts no run.", job.waiting > 0 && (coordinated ? "The coordinator starts the waiting restatements." : "The button starts only as many restatements as can be open at once. Start the others later.")]
        .filter(Boolean)
        .map((note, index) => (
          <Text fontSize="sm" key={index} overflowWrap="anywhere">
            {note}
          </Text>
        ))}
    </Box>
  );
}

function title(job: JobLine): string {
  if (job.kind === "restatement") return "Restatement";
  const days = job.first && job.last ? ` of ${day(job.first)} to ${day(job.last)}` : "";
  return `${job.kind === "backfill" ? "Backfill" : "airflow tx backfill"}${days}`;
}

/** Writes the day that begins at a moment, or the moment where in this time zone none does: the day would be another one. */
function day(at: string): string {
  return moment(at).replace(/ 00:00:00$/, "");
}

/** Colours repeat what the title says. */
function Bar({ job }: { job: JobLine }) {
  const parts: [number, string][] = [
    [job.done, "green.solid"],
    [job.failed, "red.solid"],
    [job.left_out, "orange.solid"],
    [job.under_way, "blue.solid"],
  ];
  return (
    <Flex
      aria-label={isOver(job) ? "Ended" : "Under way"}
      aria-valuemax={job.total}
      aria-valuemin={0}
      aria-valuenow={job.done}
      aria-valuetext={progress(job)}
      bg="bg.emphasized"
      borderRadius="sm"
      height="8px"
      my={2}
      overflow="hidden"
      role="progressbar"
    >
      {parts.map(([number, color]) => number > 0 && <Box bg={color} flexShrink={0} key={color} width={`${(100 * number) / job.total}%`} />)}
    </Flex>
  );
}
