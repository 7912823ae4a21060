/** One chart: its values, in words and drawn. The words are those of the period at which a person points. */

import { Box, HStack, Text } from "@chakra-ui/react";
import { memo, useLayoutEffect } from "react";

import { said, spoken, type ChartData, type Said } from "./charts";
import { LOOK, usePlot } from "./usePlot";

const HEIGHT = 130;

interface Props {
  chart: ChartData;
  /** The period at which a person points, in any chart. */
  index: number | null;
  onPoint: (index: number | null) => void;
  onChoose: (index: number) => void;
}

export const Chart = memo(function Chart({ chart, index, onPoint, onChoose }: Props) {
  const { drawn } = chart;
  const [box, plot] = usePlot(drawn, HEIGHT, true);
  useLayoutEffect(() => {
    const left = index === null ? -10 : plot.current!.valToPos(drawn.x[index]!, "x");
    plot.current!.setCursor({ left, top: index === null ? -10 : 0 }, false);
  }, [drawn, index, plot]);
  const pointed = () => plot.current?.cursor.idx ?? null;
  return (
    <Box borderColor="border" borderRadius="sm" borderWidth="1px" minW={0} p={2}>
      <Text fontSize="sm" fontWeight="semibold">
        {chart.title}
        <Text as="span" color="fg.muted" fontSize="xs" fontWeight="normal" ms={2}>
          {chart.about}
        </Text>
      </Text>
      <HStack aria-hidden columnGap={3} fontSize="xs" minH="2.8em" rowGap={0} wrap="wrap">
        {said(chart, index).map((part) => (
          <Part key={part.text} part={part} />
        ))}
      </HStack>
      <Box
        aria-label={spoken(chart, null)}
        css={LOOK}
        cursor="pointer"
        height={`${HEIGHT}px`}
        minW={0}
        onClick={(event) => {
          // A finger that touches only points: it cannot point before it presses.
          const isTouch = (event.nativeEvent as PointerEvent).pointerType === "touch";
          const at = event.target === plot.current?.over && !isTouch ? pointed() : null;
          if (at !== null) onChoose(at);
        }}
        onMouseLeave={() => onPoint(null)}
        onMouseMove={() => onPoint(pointed())}
        overflow="hidden"
        ref={box}
        role="img"
      />
    </Box>
  );
});

function Part({ part: { look, color, text } }: { part: Said }) {
  const stroke = `var(--chakra-colors-${color})`;
  return (
    <HStack as="span" gap={1}>
      {look === "bar" && <Box as="span" height="9px" style={{ background: stroke }} width="9px" />}
      {look !== undefined && look !== "bar" && <Box as="span" style={{ borderTop: `2px ${look === "line" ? "solid" : "dashed"} ${stroke}` }} width="14px" />}
      <Text as="span">{text}</Text>
    </HStack>
  );
}
