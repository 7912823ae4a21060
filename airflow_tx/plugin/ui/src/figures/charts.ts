/** What each chart shows, in numbers and in words. No pixels yet. */

import type { Figures } from "../api/client";

type Point = Figures["points"][number];
type Spread = NonNullable<Point["commit"]>;

/** A value at a place from 0, the left end, to 1, the right end. */
export interface Dot {
  x: number;
  y: number;
}

export interface ChartData {
  title: string;
  /** What is to be seen, for everybody; a screen reader reads it instead of the lines. */
  words: string;
  /** Of bars: one for each stretch of time. */
  bars: Dot[];
  /** Of lines: the middle, and what 95 of 100 do not exceed. */
  line: Dot[];
  above: Dot[];
  /** From the left end up to here nothing is known. */
  unknown: number;
  most: number;
}

interface Writers {
  seconds: (value: number) => string;
  whole: (value: number) => string;
}

/** Makes all charts of an answer. */
export function charts(figures: Figures, write: Writers): ChartData[] {
  const unknown = figures.known_since === null ? 0 : share(figures, Date.parse(figures.known_since));
  const of = (title: string, pick: (point: Point) => Spread | null, value: (one: number) => string) =>
    spreadChart(figures, unknown, title, pick, value);
  return [
    throughput(figures, unknown, write),
    of("Processing", (point) => point.processing, write.seconds),
    of("Commit", (point) => point.commit, write.seconds),
    of("Batch size", (point) => point.size, (value) => `${write.whole(value)} rows`),
    lag(figures, write),
  ];
}

function throughput(figures: Figures, unknown: number, write: Writers): ChartData {
  const bars = figures.points.map((point, index) => ({ x: index / figures.points.length, y: point.transactions }));
  const { transactions, rows } = figures.total;
  const words = transactions === 0 ? "nothing was committed" : [`${write.whole(transactions)} ${transactions === 1 ? "transaction" : "transactions"}`, rows === null ? "" : `${write.whole(rows)} ${rows === 1 ? "row" : "rows"}`, `each bar ${write.seconds(figures.step)}`];
  return made({ title: "Throughput", words: typeof words === "string" ? words : words.filter(Boolean).join(", "), bars, unknown });
}

function spreadChart(figures: Figures, unknown: number, title: string, pick: (point: Point) => Spread | null, write: (value: number) => string): ChartData {
  const some = figures.points.flatMap((point, index) => {
    const spread = pick(point);
    return spread === null ? [] : [{ x: (index + 0.5) / figures.points.length, spread }];
  });
  const total = pick(figures.total);
  return made({
    title,
    words: total === null ? "not known" : `p50 ${write(total.p50)}, p95 ${write(total.p95)}`,
    line: some.map(({ x, spread }) => ({ x, y: spread.p50 })),
    above: some.map(({ x, spread }) => ({ x, y: spread.p95 })),
    unknown,
  });
}

function lag(figures: Figures, write: Writers): ChartData {
  const line = figures.lag.map(({ at, value }) => ({ x: share(figures, Date.parse(at)), y: value }));
  const last = figures.lag.at(-1);
  const first = line[0];
  const words = last ? `${write.whole(last.value)} ${figures.lag_unit ?? ""} at last; this server knows it while a person looks` : "not known: the ledger keeps none";
  return made({ title: "Lag", words, line, unknown: first === undefined ? 1 : first.x });
}

function made(some: Pick<ChartData, "title" | "words" | "unknown"> & Partial<ChartData>): ChartData {
  const all = { bars: [], line: [], above: [], ...some };
  return { ...all, most: Math.max(...[...all.bars, ...all.line, ...all.above].map((dot) => dot.y), 0) };
}

/** Where a moment lies between the ends of the span. */
function share({ since, until }: Figures, at: number): number {
  const [start, end] = [Date.parse(since), Date.parse(until)];
  return Math.min(Math.max((at - start) / (end - start), 0), 1);
}
