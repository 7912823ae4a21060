/** What each chart shows, in numbers and in words. No pixels yet. */

import type { Figures } from "../api/client";
import { NARROWEST } from "../timeline/scale";
import { count, counted, duration } from "../parts/words";

type Point = Figures["points"][number];
type Values = (number | null)[];

/** `s`: seconds; a rate; else the plural of what is counted. */
type Unit = string;
const RATES: readonly Unit[] = ["an hour", "a transaction"];

/** What is drawn for each point; a limit is the same everywhere. */
export interface Line {
  look: "bar" | "line" | "dashed" | "limit";
  /** A token of Chakra. */
  color: string;
  values: Values;
}

/** What is on the canvas: it is drawn again only if this changes. */
export interface Drawn {
  /** The middle of each period, in seconds. */
  x: number[];
  start: number;
  end: number;
  /** Until when nothing is known, in seconds. */
  unknown: number | null;
  unit: Unit;
  lines: Line[];
}

/** A value with its name; of all periods together, or of each. */
interface Value {
  label?: string;
  unit?: Unit;
  total: number | null;
  values?: Values;
  /** How it is drawn; a value without it is only written. */
  look?: Line["look"];
  color?: string;
}

export interface ChartData {
  title: string;
  /** What the title leaves open. */
  about: string;
  /** What is written where there is no value. */
  none: string;
  unit: Unit;
  values: Value[];
  drawn: Drawn;
}

/** A part of what is written of a chart, and how that part is drawn. */
export interface Said {
  look?: Line["look"];
  color?: string;
  text: string;
}

/** Makes all charts of an answer. */
export function charts(figures: Figures): ChartData[] {
  const { points, total } = figures;
  const hours = (Date.parse(figures.until) - Math.max(Date.parse(figures.since), known(figures))) / 3_600_000;
  const made = (title: string, about: string, unit: Unit, none: string, values: (Value | null)[]): ChartData => {
    const all = values.filter((value) => value !== null);
    const lines = all.flatMap(({ look, color = "", values }) => (look && values ? [{ look, color, values }] : []));
    return { title, about, unit, none, values: all, drawn: { ...axis(figures), unit, lines } };
  };
  const one = (pick: (point: Point) => number | null, value: Omit<Value, "total" | "values">): Value => ({ ...value, total: pick(total), values: points.map(pick) });
  const limit = (label: string, most: number | null): Value | null => (most === null ? null : { label, look: "limit", color: "red-fg", total: most, values: points.map(() => most) });
  const counts = (title: string, about: string, unit: Unit, color: string, pick: (point: Point) => number, more: Value[] = []) =>
    made(title, about, unit, "", [one(pick, { look: "bar", color }), { unit: "an hour", total: hours > 0 ? pick(total) / hours : null }, ...more]);
  const spread = (title: string, about: string, unit: Unit, none: string, pick: (point: Point) => Point["commit"]) =>
    made(title, about, unit, none, [
      one((point) => pick(point)?.p50 ?? null, { label: "p50", look: "line", color: "blue-fg" }),
      one((point) => pick(point)?.p95 ?? null, { label: "p95", look: "dashed", color: "orange-fg" }),
    ]);
  const some = (title: string, about: string, unit: Unit, color: string, pick: (point: Point) => number) => {
    const each = total.transactions > 0 ? pick(total) / total.transactions : null;
    return pick(total) > 0 ? [counts(title, about, unit, color, pick, [{ unit: "a transaction", total: each }])] : [];
  };
  const lag = made("Lag", "the last value that was measured while a person viewed the page", figures.lag_unit ?? "", "not seen", [one((point) => point.lag, { look: "line", color: "blue-fg" }), limit("max_lag", figures.max_lag)]);
  return [
    counts("Throughput", "committed", "transactions", "green-solid", (point) => point.transactions, [one((point) => point.rows, { unit: "rows" })]),
    spread("Processing", "from the begin until every task had acked", "s", "no transaction was committed", (point) => point.processing),
    spread("Commit", "from the grant of the turn until the end of the commit", "s", "no transaction was committed", (point) => point.commit),
    spread("Batch size", "", "rows", "no rows were counted", (point) => point.size),
    made("Age", "age of the oldest open transaction", "s", "no transaction was open", [one((point) => point.age, { label: "up to", look: "bar", color: "blue-solid" }), limit("late_after", figures.late_after)]),
    // The API server has seen it, also before the history of the ledger begins.
    { ...lag, drawn: { ...lag.drawn, unknown: null } },
    counts("Replays", "counted when a replay begins", "replays", "orange-solid", (point) => point.replays),
    counts("Failures", "failures of the transactions that ended", "failures", "red-solid", (point) => point.failures),
    counts("Skips", "", "skipped transactions", "fg-muted", (point) => point.skipped),
    // Most topologies have neither: nothing is drawn of what there is none of.
    ...some("Rejected rows", "rows that a commit kept aside", "rejected rows", "orange-solid", (point) => point.rejected),
    ...some("Warnings", "warnings of checks that did not stop the commit", "warnings", "orange-solid", (point) => point.warnings),
  ];
}

function axis(figures: Figures): Omit<Drawn, "unit" | "lines"> {
  const start = Date.parse(figures.since) / 1000;
  const x = figures.points.map((_, index) => start + (index + 0.5) * figures.step);
  return { x, start, end: start + x.length * figures.step, unknown: figures.known_since === null ? null : known(figures) / 1000 };
}

/** From when on the figures are known, in milliseconds. */
function known({ known_since }: Figures): number {
  return known_since === null ? 0 : Date.parse(known_since);
}

/** Says what a chart shows of one period; of all of them together without an index. */
export function said(chart: ChartData, index: number | null): Said[] {
  const { x, unknown } = chart.drawn;
  if (index !== null && unknown !== null && x[index]! < unknown) return [{ text: "not known" }];
  const parts = chart.values.flatMap(({ label, unit, total, values, look, color }): Said[] => {
    const value = index === null ? total : (values?.[index] ?? null);
    return value === null ? [] : [{ look, color, text: [label, written(value, unit ?? chart.unit)].filter(Boolean).join(" ") }];
  });
  return parts.every(({ look }) => look === "limit") ? [{ text: chart.none }, ...parts] : parts;
}

/** Says the same in one text. */
export function spoken(chart: ChartData, index: number | null): string {
  return `${chart.title}: ${said(chart, index).map(({ text }) => text).join(", ")}`;
}

function written(value: number, unit: Unit): string {
  if (unit === "s") return value < 1 ? `${Number(value.toPrecision(2))} s` : duration(value);
  if (RATES.includes(unit)) return `${Number(value.toPrecision(2)).toLocaleString("en-US", { useGrouping: false })} ${unit}`;
  return unit === "" ? count(Math.round(value)) : counted(Math.round(value), unit.replace(/s$/, ""), unit);
}

/** Gives the address of one period: never less than the timeline can show, never beyond now. */
export function periodShown(start: number, step: number, now: number): { range: number; until: number | null } {
  const end = Math.min(start + step * 1000, now);
  const range = Math.max((end - start) / 1000, NARROWEST);
  const until = end + (range * 1000 - (end - start)) / 2;
  return { range, until: until >= now ? null : until };
}
