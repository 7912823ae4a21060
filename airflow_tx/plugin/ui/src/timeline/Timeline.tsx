/** Transactions over time: a row each, newest first; processing overlaps, commits are in strict order. */

import { Box, Flex, HStack, Text } from "@chakra-ui/react";
import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore, type KeyboardEvent } from "react";
import { useNavigate } from "react-router-dom";

import { Figures } from "../figures/Figures";
import { useNow } from "../api/live";
import { Term } from "../parts/Term";
import { Trouble } from "../parts/Trouble";
import { useAddress } from "../parts/address";
import { counted, timeZone } from "../parts/words";
import { Dragged, useDrag } from "./drag";
import { LegendItems } from "./Plot";
import { Patterns } from "./patterns";
import { RangeBar } from "./RangeBar";
import { LABEL, Row, rowHeight } from "./Row";
import { Selection } from "./Selection";
import { roundedSince, useFitting, useTimelineRows } from "./rows";
import { position, tickLabel, ticks, zoneOffset, type Span } from "./scale";
import { scrollFor, visibleRows } from "./window";

const AHEAD = 0.02;

/** @param mayAct whether the user may act on the transactions: open ones can be selected then. */
export function Timeline({ topology, mayAct }: { topology: string; mayAct: boolean }) {
  const [address] = useAddress();
  const [fit, query] = useFitting(topology, address.range === null);
  const shown = address.range === null ? fit : { range: address.range, until: null };
  return shown === null ? <Trouble query={query} /> : <Drawn ends={address.until ?? shown.until} mayAct={mayAct} range={shown.range} topology={topology} />;
}

/** @param ends where the shown time ends, in milliseconds; null: now. */
function Drawn({ topology, mayAct, range, ends }: { topology: string; mayAct: boolean; range: number; ends: number | null }) {
  const [, write] = useAddress();
  const now = useNow(Math.max(1000, range));
  const until = ends ?? now;
  const scroll = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [plot, width] = useWidth();
  const narrow = useNarrow();
  const high = rowHeight(narrow);
  const drawn = visibleRows(view.top, view.height, high, Number.MAX_SAFE_INTEGER);
  const rows = useTimelineRows(topology, roundedSince(until, range), ends, drawn);
  const shown = { first: drawn.first, last: Math.min(drawn.last, rows.total) };
  // The same object as long as the time is the same: rows that do not change are not drawn again while one scrolls.
  const span: Span = useMemo(() => ({ start: until - range * 1000, end: until + range * 1000 * AHEAD }), [until, range]);
  const [selected, setSelected] = useState<ReadonlySet<number>>(new Set());
  const select = useCallback((txid: number, chosen: boolean) => {
    setSelected((before) => new Set(chosen ? [...before, txid] : [...before].filter((each) => each !== txid)));
  }, []);
  const selectable = (txid: number) => mayAct && (rows.byTxid.get(txid)?.open === true || selected.has(txid));
  const toggle = (index: number) => {
    const txid = rows.newest - index;
    if (selectable(txid)) select(txid, !selected.has(txid));
  };
  const keys = useKeys(scroll, rows.total, view, high, toggle);
  const navigate = useNavigate();
  const axis = useRef<HTMLElement | null>(null);
  const measured = useCallback(
    (box: HTMLElement | null) => {
      axis.current = box;
      plot(box);
    },
    [plot],
  );
  const { drag, handlers } = useDrag({ span, width, now, plot: () => axis.current, zoom: (shown) => void navigate(write(shown)) });

  const measure = useCallback(() => {
    const box = scroll.current;
    if (box) setView({ top: box.scrollTop, height: box.clientHeight });
  }, []);
  useEffect(measure, [measure, rows.total]);

  return (
    <Box>
      <Patterns />
      <RangeBar now={now} range={range} until={ends} write={write} />
      <Trouble query={rows.query} />
      <Selection clear={() => setSelected(new Set())} topology={topology} txids={[...selected].sort((a, b) => a - b)} />
      <Axis
        plot={measured}
        span={span}
        width={width}
      />
      <Box borderColor="border" borderWidth="1px" position="relative" {...handlers} style={{ touchAction: "pan-y" }}>
        <Grid now={now} span={span} width={width} />
        <Dragged drag={drag} left={LABEL} />
        <Box
          maxH={{ base: "60dvh", md: "max(300px, calc(100dvh - 480px))" }}
          onKeyDown={keys}
          onScroll={measure}
          overflowY="auto"
          position="relative"
          ref={scroll}
          style={{ scrollbarGutter: "stable" }}
        >
          <Box aria-label="Transactions, newest first" height={`${rows.total * high}px`} position="relative" role="list">
            {Array.from({ length: Math.max(shown.last - shown.first, 0) }, (_, each) => shown.first + each).map((index) => (
              <Row
                href={write({ topology, txid: rows.newest - index })}
                indented={mayAct}
              index={index}
              narrow={narrow}
                key={rows.newest - index}
                now={rows.byTxid.get(rows.newest - index)?.open ? now : 0}
                onSelect={select}
                row={rows.byTxid.get(rows.newest - index)}
                selected={selectable(rows.newest - index) ? selected.has(rows.newest - index) : null}
                span={span}
                total={rows.total}
                txid={rows.newest - index}
                width={width}
              />
            ))}
          </Box>
          {rows.query.data?.total === 0 && (
            <Text color="fg.muted" p={4}>
              No transaction in this time.
            </Text>
          )}
        </Box>
      </Box>
      <Flex color="fg.muted" fontSize="sm" gap={4} justify="space-between" mt={2} wrap="wrap">
        <HStack columnGap={4} rowGap={0} wrap="wrap">
          <LegendItems />
        </HStack>
        <Text>{counted(rows.total, "transaction")}</Text>
      </Flex>
      <Figures now={now} range={range} topology={topology} until={ends} />
    </Box>
  );
}

function Axis({ span, width, plot }: { span: Span; width: number; plot: (box: HTMLElement | null) => void }) {
  const zone = timeZone();
  return (
    <Flex borderColor="transparent" borderXWidth="1px" height="20px" overflowY="hidden" style={{ scrollbarGutter: "stable" }}>
      <Text color="fg.muted" flexShrink={0} fontSize="xs" px={2} width={LABEL}>
        <Term name="txid">txid</Term>, batch
      </Text>
      <Box flex="1" minW={0} overflow="hidden" position="relative" ref={plot}>
        {ticks(span, width, 70, zoneOffset(span.end, zone)).filter((at) => Math.abs(position(at, span, width) - width / 2) < width / 2 - 20).map((at) => (
          <Text color="fg.muted" fontSize="xs" key={at} left={`${position(at, span, width)}px`} position="absolute" transform="translateX(-50%)" whiteSpace="nowrap">
            {tickLabel(at, zone)}
          </Text>
        ))}
      </Box>
    </Flex>
  );
}

/** Draws the moments behind the rows. It lies beside the box that scrolls, so that it makes nothing to scroll to. */
function Grid({ now, span, width }: { now: number; span: Span; width: number }) {
  const lines = ticks(span, width, 70, zoneOffset(span.end, timeZone()));
  return (
    <Box aria-hidden bottom={0} left={LABEL} overflow="hidden" pointerEvents="none" position="absolute" top={0}>
      <svg height="100%" width={width}>
        {lines.map((at) => (
          <line key={at} stroke="var(--chakra-colors-border)" x1={position(at, span, width)} x2={position(at, span, width)} y1="0" y2="100%" />
        ))}
        <line stroke="var(--chakra-colors-fg-muted)" strokeDasharray="2 3" x1={position(now, span, width)} x2={position(now, span, width)} y1="0" y2="100%" />
      </svg>
    </Box>
  );
}

/** Whether the page is as narrow as a phone. */
function useNarrow(): boolean {
  const [query] = useState(() => matchMedia("(max-width: 767px)"));
  const listen = useCallback((changed: () => void) => (query.addEventListener("change", changed), () => query.removeEventListener("change", changed)), [query]);
  return useSyncExternalStore(listen, () => query.matches);
}

/** Measures an element's width, also when it changes. */
function useWidth(): [(box: HTMLElement | null) => void, number] {
  const [width, setWidth] = useState(0);
  const observer = useRef<ResizeObserver | null>(null);
  const ref = useCallback((box: HTMLElement | null) => {
    observer.current?.disconnect();
    if (!box) return;
    observer.current = new ResizeObserver(() => setWidth(box.clientWidth));
    observer.current.observe(box);
    setWidth(box.clientWidth);
  }, []);
  return [ref, width];
}

const STEPS: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };

/** Lets arrow keys go from row to row, and x select the row. */
function useKeys(
  scroll: React.RefObject<HTMLDivElement | null>,
  total: number,
  view: { top: number; height: number },
  high: number,
  toggle: (index: number) => void,
) {
  const [wanted, setWanted] = useState<number | null>(null);
  useEffect(() => {
    if (wanted === null) return;
    const row = scroll.current?.querySelector<HTMLElement>(`[data-row="${wanted}"]`);
    if (!row) return; // it is drawn once it is scrolled to
    row.focus({ preventScroll: true });
    setWanted(null);
  }, [wanted, view, scroll]);
  return (event: KeyboardEvent) => {
    const step = STEPS[event.key];
    const current = (event.target as HTMLElement).dataset["row"];
    if (event.key === "x" && current !== undefined) toggle(Number(current));
    if (step === undefined || current === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max(Number(current) + step, 0), total - 1);
    const top = scroll.current && scrollFor(next, scroll.current.scrollTop, scroll.current.clientHeight, high);
    if (top !== undefined && top !== null) scroll.current?.scrollTo({ top });
    setWanted(next);
  };
}
