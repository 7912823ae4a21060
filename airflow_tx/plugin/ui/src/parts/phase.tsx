/** How phases and states look: each has a sign and a word of its own, colour only repeats them. */

import { Box, HStack, Text } from "@chakra-ui/react";

import type { TopologyState } from "../api/client";

export type StateCode = TopologyState["code"];

type Sign = "check" | "clock" | "cross" | "bars" | "solid" | "skip" | "back" | "late" | "stop" | "question";

const PHASES: Record<string, { sign: Sign; color: string; word: string }> = {
  PROCESSING: { sign: "bars", color: "blue.fg", word: "processing" },
  PROCESSED: { sign: "clock", color: "fg.muted", word: "waits" },
  COMMITTING: { sign: "solid", color: "green.fg", word: "committing" },
  COMMITTED: { sign: "check", color: "green.fg", word: "committed" },
  FAILED: { sign: "cross", color: "red.fg", word: "failed" },
  SKIPPED: { sign: "skip", color: "orange.fg", word: "skipped" },
  READMITTED: { sign: "back", color: "purple.fg", word: "re-admitted" },
};

const STATES: Record<StateCode, { sign: Sign; color: string; word: string }> = {
  fine: { sign: "check", color: "green.fg", word: "fine" },
  waits: { sign: "clock", color: "fg.muted", word: "waits" },
  late: { sign: "late", color: "orange.fg", word: "late" },
  blocked: { sign: "stop", color: "red.fg", word: "blocked" },
  failed: { sign: "cross", color: "red.fg", word: "failed" },
  unreadable: { sign: "question", color: "red.fg", word: "unreadable" },
};

const SHAPES: Record<Sign, React.ReactNode> = {
  check: <path d="M3 8.5l3.2 3.2L13 4.8" fill="none" />,
  clock: (
    <>
      <circle cx="8" cy="8" fill="none" r="5.5" />
      <path d="M8 4.8V8l2.3 1.6" fill="none" />
    </>
  ),
  cross: <path d="M4 4l8 8M12 4l-8 8" fill="none" />,
  bars: <path d="M2.5 5h8M5.5 8h8M3.5 11h6" fill="none" />,
  solid: <rect height="8" rx="1" width="11" x="2.5" y="4" />,
  skip: <path d="M3 4l5 4-5 4zM9 4l5 4-5 4z" fill="none" />,
  back: <path d="M12.5 5.5H6a3 3 0 000 6h5M9.5 2.5l3 3-3 3" fill="none" />,
  late: <path d="M8 2.5l6 11H2zM8 7v3M8 11.6v.4" fill="none" />,
  stop: (
    <>
      <circle cx="8" cy="8" fill="none" r="5.5" />
      <path d="M4.5 11.5l7-7" fill="none" />
    </>
  ),
  question: <path d="M5.5 6a2.5 2.5 0 114 2c-1 .7-1.5 1.1-1.5 2.2M8 12.6v.4" fill="none" />,
};

function SignOf({ sign, color }: { sign: Sign; color: string }) {
  return (
    <Box asChild color={color} flexShrink={0}>
      <svg aria-hidden fill="currentColor" height="16" stroke="currentColor" strokeLinejoin="round" strokeWidth="1.6" viewBox="0 0 16 16" width="16">
        {SHAPES[sign]}
      </svg>
    </Box>
  );
}

/** The phase of an open transaction, or the outcome of a final one, in one word; a blocked one says so. */
export function phaseWord(row: { phase: string; blocked: string | null }): string {
  return row.blocked === null ? (PHASES[row.phase]?.word ?? row.phase.toLowerCase()) : "blocked";
}

/** What was done over: which transaction it restates, which one counts instead of it, and which correction it lacks. */
export function restatementWords(row: { restates?: number | null; restated_by?: number | null; to_restate?: boolean; behind?: string | null }): string {
  const words = [row.restates != null && `restates ${row.restates}`, row.restated_by != null && `restated by ${row.restated_by}`];
  return [...words, row.to_restate && "to be restated", row.behind && `behind ${row.behind}`].filter(Boolean).join(", ");
}

export function Phase({ row, wordHidden }: { row: { phase: string; blocked: string | null }; wordHidden?: boolean }) {
  const { sign, color } = row.blocked === null ? (PHASES[row.phase] ?? STATES.unreadable) : STATES.blocked;
  return (
    <HStack gap={1.5} minW={0}>
      <SignOf color={color} sign={sign} />
      <Text color={color} display={wordHidden ? { base: "none", md: "inline" } : "inline"} fontSize="inherit" truncate>
        {phaseWord(row)}
      </Text>
    </HStack>
  );
}

export function State({ state }: { state: TopologyState }) {
  return <StateSign code={state.code} word={STATES[state.code].word} />;
}

/** The sign of a state, in front of a word. */
export function StateSign({ code, word }: { code: StateCode; word: string }) {
  const { sign, color } = STATES[code];
  return (
    <HStack gap={1.5}>
      <SignOf color={color} sign={sign} />
      <Text color={color} fontSize="inherit" fontWeight="medium">
        {word}
      </Text>
    </HStack>
  );
}

/** All states, as the server orders topologies: those that need a person first. */
export const STATE_CODES: readonly StateCode[] = ["blocked", "unreadable", "failed", "late", "waits", "fine"];
