/** One transaction of the timeline: its number, phase and batch, and its bars. It is a link to its page. */

import { Box, Flex, HStack, Text, type TextProps } from "@chakra-ui/react";
import { memo } from "react";
import { Link } from "react-router-dom";

import type { TimelineRow } from "../api/client";
import { Phase, phaseWord, restatementWords } from "../parts/phase";
import { Whole } from "../parts/Whole";
import { asideWords, count, counted } from "../parts/words";
import { Plot } from "./Plot";
import type { Span } from "./scale";

const PLOT = 26;
/** On a narrow page the name of the batch has a line of its own. */
const NAME = 16;

/** The bars of a transaction whose rows another one has replaced. */
const PALE = 0.45;

/** The height of a row, in pixels. */
export const rowHeight = (narrow: boolean) => (narrow ? PLOT + NAME : PLOT);

/** The room that is left of the plots: on a narrow page as much as the longest txid needs, beside its sign and its box. */
export const LABEL = { base: "var(--tx-label, 104px)", md: "346px", xl: "420px" };
export const labelWidth = (newest: number) => `${Math.max(104, 60 + 8 * (String(newest).length + 3))}px`;

interface Props {
  row: TimelineRow | undefined;
  txid: number;
  index: number;
  total: number;
  href: string;
  now: number;
  span: Span;
  width: number;
  narrow: boolean;
  /** Whether there is room for the box that selects a row. */
  indented: boolean;
  /** Whether it is selected; null: a person can do nothing to it. */
  selected: boolean | null;
  onSelect: (txid: number, selected: boolean, through?: boolean) => void;
}

export const Row = memo(function Row({ row, txid, index, total, href, now, span, width, narrow, indented, selected, onSelect }: Props) {
  const counts = row?.restated_by == null;
  return (
    <Box
      aria-posinset={index + 1}
      aria-setsize={total}
      bg={selected ? "bg.info" : undefined}
      height={`${rowHeight(narrow)}px`}
      left={0}
      position="absolute"
      right={0}
      role="listitem"
      top={`${index * rowHeight(narrow)}px`}
    >
      {selected !== null && (
        <input
          aria-label={`Select transaction ${txid}`}
          checked={selected}
          onChange={(event) => onSelect(txid, event.target.checked, (event.nativeEvent as MouseEvent).shiftKey)}
          style={{ height: 16, left: 6, position: "absolute", top: 5, width: 16, zIndex: 1 }}
          type="checkbox"
        />
      )}
      <Flex
        _focusVisible={{ outline: "2px solid", outlineColor: "blue.focusRing", outlineOffset: "-2px" }}
        _hover={{ bg: "bg.muted/60" }}
        align="center"
        asChild
        height="100%"
        pb={narrow ? `${NAME}px` : 0}
        position="relative"
      >
        <Link aria-label={row ? spoken(row) : `Transaction ${txid}`} data-row={index} data-txid={txid} draggable={false} to={href}>
          <HStack flexShrink={0} fontSize="sm" gap={2} overflow="hidden" pe={2} ps={indented ? 7 : 2} width={LABEL}>
            <Text
              color={counts ? undefined : "fg.muted"}
              fontVariantNumeric="tabular-nums"
              fontWeight={counts ? "semibold" : "normal"}
              minW={{ base: "auto", md: "44px" }}
              textDecoration={counts ? undefined : "line-through"}
            >
              {txid}
              {row && row.attempt > 1 && <Box as="span" fontWeight="normal">{`.${row.attempt}`}</Box>}
            </Text>
            {row && (
              <Box flexShrink={0} width={{ base: "auto", md: "112px" }}>
                <Phase row={row} wordHidden />
              </Box>
            )}
            {!narrow && <Name flex="1" name={named(row)} room={width} />}
            <Text color="fg.muted" display={{ base: "none", md: "block" }} flexShrink={0} fontVariantNumeric="tabular-nums">
              {row?.rows != null && count(row.rows)}
            </Text>
          </HStack>
          <Box data-counts={counts} flex="1" minW={0} opacity={counts ? 1 : PALE}>
            {row && <Plot height={PLOT} now={now} row={row} span={span} titled={false} width={width} />}
          </Box>
          {narrow && <Name bottom={0} insetX={0} name={named(row)} position="absolute" ps={indented ? 7 : 2} room={width} />}
        </Link>
      </Flex>
    </Box>
  );
});

/** What was done over, then the name of the batch. */
function named(row: TimelineRow | undefined): string | null {
  return row === undefined ? null : [restatementWords(row), row.batch_name].filter(Boolean).join("; ");
}

/** The file, the range or the interval of a batch. */
function Name({ name, ...layout }: { name: string | null; room: number } & TextProps) {
  return <Whole color="fg.muted" fontSize="xs" lineHeight={`${NAME}px`} text={name ?? ""} {...layout} />;
}

/** Says of a row what is seen of it. */
export function spoken(row: Pick<TimelineRow, "txid" | "attempt" | "phase" | "blocked" | "batch_name" | "rows" | "waiting_for" | "rejected" | "warnings"> & Parameters<typeof restatementWords>[0]): string {
  const attempt = row.attempt > 1 ? `, attempt ${row.attempt}` : "";
  const batch = row.batch_name ? `, ${row.batch_name}` : "";
  const rows = row.rows === null ? "" : `, ${counted(row.rows, "row")}`;
  const again = restatementWords(row) && `, ${restatementWords(row)}`;
  const waits = row.waiting_for ? `, waits for ${row.waiting_for}` : "";
  const aside = asideWords(row).map((words) => `, ${words}`).join("");
  return `Transaction ${row.txid}${attempt}: ${phaseWord(row)}${again}${batch}${rows}${aside}${waits}`;
}
