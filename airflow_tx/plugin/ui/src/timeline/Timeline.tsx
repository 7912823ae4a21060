/** Transactions over time: a row each, newest first; processing overlaps, commits are in strict order. */

import { Box, Flex, HStack, Text } from "@chakra-ui/react";
import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore, type CSSProperties, type KeyboardEvent } from "react";
import { useNavigate } from "react-router-dom";

import { Figures } from "../figures/Figures";
import type { TimelineRow } from "../api/client";
import { useNow } from "../api/live";
import { Trouble } from "../parts/Trouble";
import { useAddress } from "../parts/address";
import { counted } from "../parts/words";
import { Axis, Grid } from "./Axis";
import { Dragged, useDrag } from "./drag";
import { isFiltered, type RowFilter } from "./filter";
import { FilterBar } from "./FilterBar";
import { LegendItems } from "./Plot";
import { Patterns } from "./patterns";
import { RangeBar } from "./RangeBar";
import { LABEL, labelWidth, Row, rowHeight } from "./Row";
import { Selection } from "./Selection";
import { selectedAfter } from "./selected";
import { Strip } from "./Strip";
import { Times } from "./Times";
import { Tip, useTip } from "./Tip";
import { busyTimes, roundedSince, useFitting, useTimelineRows } from "./rows";
import { fitted, NARROWEST, type Span } from "./scale";
import { scrollFor, visibleRows } from "./window";

/** @param mayAct whether the user may act on the transactions: open ones can be selected then. */
export function Timeline({ topology, mayAct }: { topology: string; mayAct: boolean }) {
  const [{ range, until, status, find, run, only }] = useAddress();
  const key = JSON.stringify({ status, find, run, only });
  // The same object as long as it says the same.
  const filter = useMemo(() => JSON.parse(key) as RowFilter, [key]);
  const [fit, query] = useFitting(topology, filter, range === null);
  const both = { filter, mayAct, topology };
  if (range !== null) return <Drawn {...both} ends={until} range={range} start={null} />;
  if (fit === null) return <Trouble query={query} />;
  // As much as fits, until another moment.
  if (until !== null) return <Drawn {...both} ends={until} range={Math.max(((fit.until ?? query.dataUpdatedAt) - fit.start) / 1000, NARROWEST)} start={null} />;
  return <Drawn {...both} ends={fit.until} range={null} start={fit.start} />;
}

interface Shown {
  topology: string;
  mayAct: boolean;
  filter: RowFilter;
  /** Where the shown time ends, in milliseconds; null: now. */
  ends: number | null;
  /** Where it begins; null: `range` seconds before its end. */
  start: number | null;
  range: number | null;
}

function Drawn({ topology, mayAct, filter, ends, ...begins }: Shown) {
  const [address, write] = useAddress();
  const now = useNow(steady(begins.range ?? (Date.now() - (begins.start ?? 0)) / 1000));
  const until = ends ?? now;
  const start = Math.min(begins.start ?? until - (begins.range ?? 0) * 1000, until - 1000);
  const range = (until - start) / 1000;
  const scroll = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [plot, width] = useWidth();
  const narrow = useNarrow();
  const high = rowHeight(narrow);
  const drawn = visibleRows(view.top, view.height, high, Number.MAX_SAFE_INTEGER);
  const rows = useTimelineRows(topology, roundedSince(until, range), ends, filter, drawn);
  const shown = { first: drawn.first, last: Math.min(drawn.last, rows.total) };
  const answer = rows.query.data;
  // The same object as long as the time is the same: rows that do not change are not drawn again while one scrolls.
  const span: Span = useMemo(
    () => fitted(answer === undefined ? [] : busyTimes(answer, now), start, until, width),
    // eslint-disable-next-line
    [answer, start, until, width],
  );
  const box = useRef<HTMLDivElement>(null);
  const tip = useTip(box);
  const [selected, setSelected] = useState<ReadonlySet<number>>(new Set());
  const pressed = useRef<number | null>(null);
  const byTxid = useRef(rows.byTxid);
  byTxid.current = rows.byTxid;
  const select = useCallback((txid: number, chosen: boolean, through = false) => {
    const from = through ? pressed.current : null;
    setSelected((before) => selectedAfter(before, txid, chosen, from, (each) => canBeSelected(byTxid.current.get(each))));
    pressed.current = txid;
  }, []);
  const selectable = (txid: number) => mayAct && (canBeSelected(rows.byTxid.get(txid)) || selected.has(txid));
  const toggle = (index: number) => {
    const txid = rows.txidAt(index);
    if (selectable(txid)) select(txid, !selected.has(txid));
  };
  const keys = useKeys(scroll, rows.total, view, high, toggle);
  const onKeyDown = (event: KeyboardEvent) => {
    keys(event);
    tip.onKeyDown(event);
  };
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

  const here = write({});
  // Scrolling draws none of it again.
  const times = useMemo(
    () => (
      <>
        <Strip now={now} shown={{ start, end: until }} topology={topology} write={write} />
        <Times key={`${address.range} ${address.until}`} now={now} start={start} until={ends} write={write} />
      </>
    ),
    // eslint-disable-next-line
    [here, now, start, until, ends, topology],
  );

  const measure = useCallback(() => {
    const box = scroll.current;
    if (box) setView({ top: box.scrollTop, height: box.clientHeight });
  }, []);
  useEffect(measure, [measure, rows.total]);

  return (
    <Box style={{ "--tx-label": labelWidth(rows.txidAt(0)) } as CSSProperties}>
      <Patterns />
      <RangeBar now={now} range={range} until={ends} write={write} />
      <FilterBar answer={answer} filter={filter} write={write} />
      <Trouble query={rows.query} />
      <Selection clear={() => setSelected(new Set())} isOpen={(txid) => rows.byTxid.get(txid)?.open === true} topology={topology} txids={[...selected].sort((a, b) => a - b)} />
      <Axis plot={measured} span={span} width={width} />
      <Box borderColor="border" borderWidth="1px" position="relative" ref={box} {...handlers} style={{ touchAction: "pan-y" }}>
        <Grid now={now} span={span} width={width} />
        <Dragged drag={drag} left={LABEL} />
        <Box
          maxH={{ base: "60dvh", md: "max(300px, calc(100dvh - 480px))" }}
          onKeyDown={onKeyDown}
          onScroll={() => {
            measure();
            tip.hide();
          }}
          overflowY="auto"
          position="relative"
          ref={scroll}
          style={{ scrollbarGutter: "stable" }}
          {...tip.handlers}
        >
          <Box aria-label="Transactions, newest first" height={`${rows.total * high}px`} position="relative" role="list">
            {Array.from({ length: Math.max(shown.last - shown.first, 0) }, (_, each) => shown.first + each).map((index) => {
              const txid = rows.txidAt(index);
              return (
                <Row
                  href={write({ topology, txid })}
                  indented={mayAct}
                  index={index}
                  key={txid}
                  narrow={narrow}
                  now={rows.byTxid.get(txid)?.open ? now : 0}
                  onSelect={select}
                  row={rows.byTxid.get(txid)}
                  selected={selectable(txid) ? selected.has(txid) : null}
                  span={span}
                  total={rows.total}
                  txid={txid}
                  width={width}
                />
              );
            })}
          </Box>
          {answer?.total === 0 && (
            <Text color="fg.muted" p={4}>
              {isFiltered(filter) ? "No transaction in this time matches the filter." : "There is no transaction in this time."}
            </Text>
          )}
        </Box>
        <Tip chosen={tip.chosen} now={now} room={box.current?.clientWidth ?? 0} row={tip.chosen === null ? undefined : rows.byTxid.get(tip.chosen.txid)} />
      </Box>
      {times}
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

/** Gives after how many milliseconds a time that grows is drawn anew: about a thousandth of it, not another one each time. */
function steady(seconds: number): number {
  return Math.max(1000, 2 ** Math.floor(Math.log2(Math.max(seconds, 1))));
}

/** Whether a person can do something to a row: an open one, or a committed one that counts. */
function canBeSelected(row: TimelineRow | undefined): boolean {
  return row !== undefined && (row.open || (row.phase === "COMMITTED" && row.restated_by == null));
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
