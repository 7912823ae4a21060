/** The vertical axis: how far apart its labels are, and what they say. */

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const DECIMAL = [1, 2, 5];
const powers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, each) => 10 ** (from + each));
const decimal = (from: number, to: number) => powers(from, to).flatMap((power) => DECIMAL.map((each) => Number((each * power).toPrecision(1))));

/** Seconds between two labels. */
const OF_SECONDS = [
  ...decimal(-4, -1),
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((each) => each * MINUTE),
  ...[1, 2, 3, 6, 12].map((each) => each * HOUR),
  ...decimal(0, 4).map((each) => each * DAY),
];
/** There is no half transaction. */
const OF_COUNTS = decimal(0, 15);

const SIZES: readonly (readonly [number, string])[] = [
  [DAY, "d"],
  [HOUR, "h"],
  [MINUTE, "min"],
];

const compact = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1, notation: "compact" });

/** Gives the distances between labels that are possible. */
export function steps(unit: string): number[] {
  return unit === "s" ? OF_SECONDS : OF_COUNTS;
}

/** Writes the labels; all seconds of one axis in the same unit. */
export function labels(values: readonly number[], unit: string): string[] {
  if (unit !== "s") return values.map((value) => compact.format(value));
  const most = Math.max(...values);
  const [size, name] = SIZES.find(([each]) => most >= each) ?? [1, "s"];
  return values.map((value) => (value === 0 ? "0" : `${Number((value / size).toPrecision(3))} ${name}`));
}
