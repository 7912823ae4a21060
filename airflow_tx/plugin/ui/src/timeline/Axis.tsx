/** The axis above the rows, and what is drawn behind them: labelled moments, gaps that are left out, and now. */

import { Box, Flex, Text } from "@chakra-ui/react";

import { Term } from "../parts/Term";
import { duration, timeZone } from "../parts/words";
import { LABEL } from "./Row";
import { fontOf, textWidth } from "../parts/whole";
import { breaks, labels, position, ticks, type Break, type Label, type Span } from "./scale";

interface Place {
  span: Span;
  width: number;
}

/** Pixels between labels: a label beside a gap may have a day, too. */
const apart = (span: Span) => (span.cuts?.length ? 92 : 70);
const SIZE = 12;

const ticksOf = ({ span, width }: Place, zone: string | undefined) => ticks(span, width, apart(span), zone);
const measure = (text: string) => textWidth(text, fontOf(SIZE));

/** Where time is cut there are few moments: a label at an end is moved into the picture. */
function labelsOf({ span, width }: Place): Label[] {
  const zone = timeZone();
  const hasCuts = (span.cuts?.length ?? 0) > 0;
  return labels(ticksOf({ span, width }, zone), span, (at) => position(at, span, width), zone, hasCuts, { left: 0, right: width, measure, moves: hasCuts });
}

export function Axis({ plot, ...place }: Place & { plot: (box: HTMLElement | null) => void }) {
  const { span, width } = place;
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
        {named(gaps, width).map(({ gap, text, x }) => (
          <Text
            pointerEvents="none"
            aria-hidden
            color="fg.muted"
            data-gap
            fontSize="xs"
            key={gap.left}
            left={`${x}px`}
            position="absolute"
            top={0}
            transform="translateX(-50%)"
            whiteSpace="nowrap"
          >
            {text}
          </Text>
        ))}
        {labelsOf(place).map(({ at, text, x }) => (
          <Text
            bottom={0}
            color="fg.muted"
            fontSize="xs"
            key={at}
            left={`${x}px`}
            position="absolute"
            transform="translateX(-50%)"
            whiteSpace="nowrap"
          >
            {text}
          </Text>
        ))}
      </Box>
    </Flex>
  );
}

/** Chooses the gaps whose lengths are written: the longest ones whose texts have room beside each other. */
function named(gaps: readonly Break[], width: number): { gap: Break; text: string; x: number }[] {
  const chosen: { gap: Break; text: string; x: number; half: number }[] = [];
  for (const gap of [...gaps].sort((a, b) => b.seconds - a.seconds)) {
    const text = duration(gap.seconds);
    const half = measure(text) / 2 + 6;
    const x = Math.min(Math.max((gap.left + gap.right) / 2, half), width - half);
    if (x >= half && chosen.every((other) => Math.abs(other.x - x) >= other.half + half)) chosen.push({ gap, text, x, half });
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
