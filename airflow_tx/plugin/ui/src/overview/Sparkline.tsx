/** Commits an hour, as a row of thin bars. */

import { Box, HStack, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { LOOK, usePlot } from "../figures/usePlot";
import { counted, moment } from "../parts/words";

const HEIGHT = 20;
const STEP = 4;
const HOUR = 3_600_000;

/** Draws the numbers, the newest at the right; the text beside it says the one at which a person points. */
export function Sparkline({ values }: { values: readonly number[] }) {
  const drawn = useMemo(() => {
    const x = values.map((_, index) => index + 0.5);
    return { x, start: 0, end: values.length, unknown: null, unit: "commits", lines: [{ look: "bar" as const, color: "green-solid", values: [...values] }] };
  }, [values]);
  const [box, plot] = usePlot(drawn, HEIGHT, false);
  const [index, setIndex] = useState<number | null>(null);
  return (
    <HStack gap={2} onMouseLeave={() => setIndex(null)}>
      <Box
        flexShrink={0}
        aria-label={spokenCommits(values)}
        borderBottomWidth="1px"
        borderColor="border.emphasized"
        css={LOOK}
        height={`${HEIGHT + 1}px`}
        onMouseMove={() => setIndex(plot.current?.cursor.idx ?? null)}
        ref={box}
        role="img"
        width={`${values.length * STEP}px`}
      />
      <Text aria-hidden color="fg.muted" fontSize="xs" whiteSpace="nowrap">
        {index === null ? `${total(values)} in ${values.length} h` : commitsOf(values, index, Date.now())}
      </Text>
    </HStack>
  );
}

/** Says how many commits there were in one hour. */
export function commitsOf(values: readonly number[], index: number, now: number): string {
  const hour = Math.floor(now / HOUR) * HOUR - (values.length - 1 - index) * HOUR;
  return `${values[index] ?? 0} from ${moment(hour).slice(11, 16)}`;
}

/** Says how many commits there were. */
export function spokenCommits(values: readonly number[]): string {
  return `${counted(total(values), "commit")} in ${values.length} h; per hour, oldest first: ${values.join(", ")}`;
}

function total(values: readonly number[]): number {
  return values.reduce((all, each) => all + each, 0);
}
