/** The bars of one transaction, from its begin to its end. */

import { Box, Flex, HStack, Text } from "@chakra-ui/react";
import { useCallback, useState } from "react";

import type { TransactionPage } from "../api/client";
import { duration, moment } from "../parts/words";
import { draw } from "../timeline/bars";
import { LegendItems, Plot } from "../timeline/Plot";
import { Patterns } from "../timeline/patterns";
import { withoutErrors } from "./once";

export function Life({ page, now }: { page: TransactionPage; now: number }) {
  const [width, setWidth] = useState(0);
  const measured = useCallback((box: HTMLDivElement | null) => {
    if (!box) return undefined;
    const observer = new ResizeObserver(() => setWidth(box.clientWidth));
    observer.observe(box);
    return () => observer.disconnect();
  }, []);
  const row = withoutErrors(page);
  const { start, end } = draw(row, now);
  const space = Math.max((end - start) * 0.02, 500);
  const span = { start: start - space, end: end + space };
  return (
    <Box>
      <Patterns />
      <Box borderColor="border" borderWidth="1px" overflow="hidden" ref={measured}>
        <Plot height={48} now={now} row={row} span={span} width={width} />
      </Box>
      <Flex color="fg.muted" columnGap={4} fontSize="xs" justify="space-between" mt={1} wrap="wrap">
        <Text>{moment(start)}</Text>
        <HStack columnGap={4} rowGap={0} wrap="wrap">
          <LegendItems />
        </HStack>
        <Text>{`${duration((end - start) / 1000)}${page.open ? " so far" : ""}`}</Text>
      </Flex>
    </Box>
  );
}
