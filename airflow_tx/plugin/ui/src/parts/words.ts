/** How the page writes times, durations and numbers. */

const UNITS: readonly (readonly [number, string])[] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

/** Writes seconds with at most two units: `0.4 s`, `12 s`, `3 min 20 s`, `2 d 4 h`. */
export function duration(seconds: number): string {
  if (seconds < 10) return `${Number(Math.max(seconds, 0).toFixed(1))} s`;
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${count} ${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** Writes how long ago a moment was. */
export function ago(at: string, now: number): string {
  const seconds = (now - Date.parse(at)) / 1000;
  return seconds < 1 ? "now" : `${duration(Math.round(seconds))} ago`;
}

/** Airflow's own choice of time zone, which its user makes in the navigation bar. */
export function timeZone(): string | undefined {
  try {
    const chosen: unknown = JSON.parse(localStorage.getItem("timezone") ?? "null");
    if (typeof chosen !== "string") return undefined;
    new Intl.DateTimeFormat("en-GB", { timeZone: chosen });
    return chosen;
  } catch {
    return undefined;
  }
}

/** Writes a moment as Airflow does, to the second. */
export function moment(at: string | number, zone = timeZone()): string {
  const parts = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium", timeZone: zone });
  return parts.format(new Date(at));
}

/** Writes a number with thin spaces between thousands, so that columns can be compared. */
export function count(value: number): string {
  return value.toLocaleString("en-US").replaceAll(",", "\u202f");
}

/** Writes a number and its noun: `1 row`, `2 rows`. */
export function counted(value: number, noun: string, nouns = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : nouns}`;
}

/** Says how many rows of a transaction were kept aside, and which checks warned; nothing: neither. */
export function asideWords({ rejected, warnings }: { rejected: number; warnings: readonly string[] }): string[] {
  const rows = rejected > 0 ? [counted(rejected, "rejected row")] : [];
  return warnings.length > 0 ? [...rows, `${counted(warnings.length, "warning")}: ${warnings.join(", ")}`] : rows;
}
