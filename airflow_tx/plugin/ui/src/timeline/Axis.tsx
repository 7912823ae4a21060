/** The axis above the rows, and what is drawn behind them: labelled moments, gaps that are left out, and now. */

import { Box, Flex, Text } from "@chakra-ui/react";

import { Term } from "../parts/Term";
import { duration, timeZone } from "../parts/words";
import { LABEL } from "./Row";
import { breaks, position, tickLabels, ticks, zoneOffset, type Break, type Span } from "./scale";

interface Place {
  span: Span;
  width: number;
}

/** Pixels between labels: a label beside a gap may have a day, too. */
const apart = (span: Span) => (span.cuts?.length ? 92 : 70);
const BESIDE = 64;

const ticksOf = ({ span, width }: Place, zone: string | undefined) => ticks(span, width, apart(span), zoneOffset(span.end, zone));

export function Axis({ plot, ...place }: Place & { plot: (box: HTMLElement | null) => void }) {
  const zone = timeZone();
  const { span, width } = place;
  const moments = ticksOf(place, zone);
  const labels = tickLabels(moments, zone, (span.cuts?.length ?? 0) > 0);
  const room = apart(span) / 2 - 15;
  const gaps = breaks(span, width);
  return (
    <Flex align="end" borderColor="transparent" borderXWidth="1px" overflowY="hidden" style={{ scrollbarGutter: "stable" }}>
      <Text color="fg.muted" flexShrink={0} fontSize="xs" px={2} width={LABEL}>
        <Term name="txid">txid</Term>, batch
      </Text>
      <Box flex="1" height={gaps.length > 0 ? "36px" : "20px"} minW={0} overflow="hidden" position="relative" ref={plot}>
        {gaps.length > 0 && (
          <Text srOnly>{`The time axis leaves out ${gaps.map((gap) => duration(gap.seconds)).join(", ")}, in which nothing happened.`}</Text>
        )}
        {gaps.map(({ left, right, seconds }) => (
          <Box
            aria-hidden
            bg="bg.emphasized"
            bottom={0}
            height="100%"
            key={left}
            left={`${left}px`}
            opacity={0.4}
            position="absolute"
            title={`${duration(seconds)} left out: nothing happened`}
            width={`${right - left}px`}
          />
        ))}
        {named(gaps).map((gap) => (
          <Text
            pointerEvents="none"
            aria-hidden
            color="fg.muted"
            data-gap
            fontSize="xs"
            key={gap.left}
            left={`${Math.min(Math.max((gap.left + gap.right) / 2, 36), Math.max(width - 36, 36))}px`}
            position="absolute"
            top={0}
            transform="translateX(-50%)"
            whiteSpace="nowrap"
          >
            {duration(gap.seconds)}
          </Text>
        ))}
        {moments.map((at, index) => (
          <Text
            bottom={0}
            color="fg.muted"
            display={Math.abs(position(at, span, width) - width / 2) < width / 2 - room ? undefined : "none"}
            fontSize="xs"
            key={at}
            left={`${position(at, span, width)}px`}
            position="absolute"
            transform="translateX(-50%)"
            whiteSpace="nowrap"
          >
            {labels[index]}
          </Text>
        ))}
      </Box>
    </Flex>
  );
}

/** Chooses the gaps whose lengths are written: the longest ones that have room beside each other. */
function named(gaps: readonly Break[]): Break[] {
  const chosen: Break[] = [];
  for (const gap of [...gaps].sort((a, b) => b.seconds - a.seconds)) {
    if (chosen.every((other) => Math.abs(other.left - gap.left) >= BESIDE)) chosen.push(gap);
  }
  return chosen;
}

/** Draws the moments behind the rows. It lies beside the box that scrolls, so that it makes nothing to scroll to. */
export function Grid({ now, ...place }: Place & { now: number }) {
  const { span, width } = place;
  return (
    <Box aria-hidden bottom={0} left={LABEL} overflow="hidden" pointerEvents="none" position="absolute" top={0}>
      <svg height="100%" width={width}>
        {ticksOf(place, timeZone()).map((at) => (
          <line key={at} stroke="var(--chakra-colors-border)" x1={position(at, span, width)} x2={position(at, span, width)} y1="0" y2="100%" />
        ))}
        {breaks(span, width).map(({ left, right }) => (
          <g data-kind="gap" key={left}>
            <rect fill="var(--chakra-colors-bg-muted)" height="100%" width={right - left} x={left} />
            {[left, right].map((x) => (
              <line key={x} stroke="var(--chakra-colors-fg-subtle)" strokeDasharray="4 3" x1={x} x2={x} y1="0" y2="100%" />
            ))}
          </g>
        ))}
        <line stroke="var(--chakra-colors-fg-muted)" strokeDasharray="2 3" x1={position(now, span, width)} x2={position(now, span, width)} y1="0" y2="100%" />
      </svg>
    </Box>
  );
}
