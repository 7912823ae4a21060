/** Which rows a person wants to see: what can be asked for, and how it is asked. */

export const STATUSES = ["PROCESSING", "PROCESSED", "COMMITTING", "FAILED", "BLOCKED", "COMMITTED", "SKIPPED", "READMITTED"] as const;
export const MARKS = ["restated", "replayed", "slow"] as const;

export type Status = (typeof STATUSES)[number];
export type Mark = (typeof MARKS)[number];

export interface RowFilter {
  /** One of these; null: any. */
  status: readonly Status[] | null;
  /** A part of the run id, of the batch or of an error. */
  find: string | null;
  /** The run id. */
  run: string | null;
  /** Each of these. */
  only: readonly Mark[] | null;
}

export const EVERY_ROW: RowFilter = { status: null, find: null, run: null, only: null };

export function isFiltered({ status, find, run, only }: RowFilter): boolean {
  return [status, find, run, only].some((each) => each !== null);
}

/** Gives the filter as the API asks for it. */
export function asked({ status, find, run, only }: RowFilter) {
  return {
    ...(status !== null && { status: [...status] }),
    ...(find !== null && { text: find }),
    ...(run !== null && { run }),
    ...(only !== null && { only: [...only] }),
  };
}

/** Adds one of several conditions, or takes it away; null: none is left. */
export function toggled<T>(conditions: readonly T[] | null, each: T): T[] | null {
  const rest = (conditions ?? []).filter((one) => one !== each);
  const found = rest.length === (conditions ?? []).length ? [...rest, each] : rest;
  return found.length > 0 ? found : null;
}
