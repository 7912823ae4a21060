/** Which stretch of time is shown: how much, and until when. */

import { Button, HStack, SegmentGroup, Text, Wrap } from "@chakra-ui/react";
import { useNavigate } from "react-router-dom";

import { useLost } from "../api/live";
import type { Address } from "../parts/address";
import { duration, moment } from "../parts/words";
import { NARROWEST, RANGES } from "./scale";

interface Props {
  range: number;
  until: number | null;
  now: number;
  write: (changes: Partial<Address>) => string;
}

export function RangeBar({ range, until, now, write }: Props) {
  const navigate = useNavigate();
  const lost = useLost();
  // Without a range the address means: what fits.
  const go = (changes: Partial<Address>) => navigate(write({ range: Math.max(range, NARROWEST), ...changes }), { replace: true });
  const half = range * 500;
  const end = until ?? now;
  return (
    <Wrap align="center" gap={3} mb={2}>
      <SegmentGroup.Root
        aria-label="Time shown"
        onValueChange={({ value }) => void go({ range: Number(value) })}
        size="xs"
        value={String(range)}
      >
        <SegmentGroup.Indicator />
        <SegmentGroup.Items px={{ base: 1.5, md: 3 }} items={RANGES.map(({ label, seconds }) => ({ label, value: String(seconds) }))} />
      </SegmentGroup.Root>
      <HStack gap={1}>
        <Button onClick={() => void go({ until: end - half })} size="xs" variant="outline">
          Earlier
        </Button>
        <Button disabled={until === null} onClick={() => void go({ until: end + half >= now ? null : end + half })} size="xs" variant="outline">
          Later
        </Button>
        <Button disabled={until === null} onClick={() => void go({ until: null })} size="xs" variant="outline">
          Now
        </Button>
        <Button onClick={() => void navigate(write({ range: null, until: null }), { replace: true })} size="xs" title="Show the time of the newest transactions" variant="outline">
          Newest
        </Button>
      </HStack>
      <Text color="fg.muted" fontSize="sm">
        {[RANGES.some(({ seconds }) => seconds === range) ? "" : `${duration(range)},`, until === null ? (lost === null ? "live" : `until ${moment(now)}, not live`) : `until ${moment(until)}`].join(" ")}
      </Text>
    </Wrap>
  );
}
