/** What is drawn of one transaction: bars in time, each in a lane of its row. No pixels yet. */

import type { TimelineRow } from "../api/client";

export type BarKind = "processing" | "failed" | "waiting" | "commit" | "replaced";

export interface Bar {
  kind: BarKind;
  start: number;
  end: number;
  /** Under way: its end is now. */
  open: boolean;
  lane: number;
  title: string;
}

export interface Mark {
  at: number;
  attempt: number;
  title: string;
}

export interface Drawing {
  bars: Bar[];
  /** Where attempts after the first one begin. */
  marks: Mark[];
  /** From the first attempt's begin to the end, or now. */
  start: number;
  end: number;
  /** How many lanes the tasks take that run at the same time. */
  lanes: number;
}

type Task = TimelineRow["tasks"][number];

const MOST_LANES = 4;

/** Draws a transaction, as it is at the moment `now`. */
export function draw(row: TimelineRow, now: number): Drawing {
  const bars: Bar[] = [];
  const ends: number[] = [];
  const tasks = row.tasks.filter(isDrawn).sort((a, b) => time(a.start, now) - time(b.start, now));
  for (const task of tasks) bars.push(taskBar(task, ends, now));
  if (row.waiting) bars.push(bar("waiting", row.waiting, now, row.waiting.waiting_for ? `waits for ${row.waiting.waiting_for}` : "waited to commit"));
  if (row.commit && row.restated_by !== null) bars.push(bar("replaced", row.commit, now, `committed; transaction ${row.restated_by} counts instead`));
  else if (row.commit) bars.push(bar("commit", row.commit, now, row.commit.end === null ? "is being committed" : "committed"));
  const begun = row.attempts.flatMap((attempt) => (attempt.begun_at === null ? [] : [Date.parse(attempt.begun_at)]));
  const start = Math.min(...begun, ...bars.map((each) => each.start), ...(begun.length + bars.length ? [] : [now]));
  const last = row.attempts.at(-1)?.ended_at;
  const end = row.open ? now : Math.max(...bars.map((each) => each.end), last ? Date.parse(last) : start);
  return { bars, marks: marks(row), start, end, lanes: Math.max(ends.length, 1) };
}

// They are shown by what they do: the row begins, waits, is committed.
const OURS = ["BeginTransactionOperator", "CommitOperator", "AcquireTurnOperator", "MarkCommittedOperator"];
const NEVER_RAN = ["upstream_failed", "skipped", "removed"];

function isDrawn(task: Task): boolean {
  if (task.start === null || NEVER_RAN.includes(task.state ?? "")) return false;
  return isFailed(task) || !OURS.includes(task.operator ?? "");
}

function isFailed(task: Task): boolean {
  return task.state === "failed" || task.state === "up_for_retry";
}

function taskBar(task: Task, ends: number[], now: number): Bar {
  const start = time(task.start, now);
  const end = time(task.end, now);
  const free = ends.findIndex((taken) => taken <= start);
  const lane = free >= 0 ? free : Math.min(ends.length, MOST_LANES - 1);
  ends[lane] = Math.max(end, ends[lane] ?? 0);
  const name = task.map_index >= 0 ? `${task.task_id}[${task.map_index}]` : task.task_id;
  const kind = isFailed(task) ? "failed" : "processing";
  return { kind, start, end, open: task.end === null, lane, title: `${name}, try ${task.try_number}: ${task.state ?? "no state"}` };
}

function bar(kind: BarKind, span: { start: string; end: string | null }, now: number, title: string): Bar {
  return { kind, start: time(span.start, now), end: time(span.end, now), open: span.end === null, lane: 0, title };
}

function marks(row: TimelineRow): Mark[] {
  const found: Mark[] = [];
  for (const [index, attempt] of row.attempts.entries()) {
    if (attempt.attempt <= 1 || attempt.begun_at === null) continue;
    const why = row.attempts[index - 1]?.why;
    found.push({ at: Date.parse(attempt.begun_at), attempt: attempt.attempt, title: `attempt ${attempt.attempt}${why ? `: ${why}` : ""}` });
  }
  return found;
}

function time(at: string | null, now: number): number {
  return at === null ? now : Date.parse(at);
}
