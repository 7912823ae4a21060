/** The attempts of a transaction beside each other: what is the same, and what has changed. */

import type { AttemptLine } from "../api/client";
import { duration, moment } from "../parts/words";

type AttemptTask = AttemptLine["tasks"][number];

export interface Compared {
  text: string;
  /** Whether it differs from the attempt before, as far as both are known. */
  changed: boolean;
  log: AttemptTask["log"];
}

export interface ComparedLine {
  name: string;
  cells: Compared[];
}

/** Gives the lines of the comparison, with a cell for each attempt. */
export function compare(attempts: readonly AttemptLine[]): ComparedLine[] {
  const tasks = [...new Set(attempts.flatMap((each) => each.tasks.map((task) => task.task_id)))];
  const lines = [
    line("Outcome", attempts, (each) => each.outcome.toLowerCase()),
    line("Begun", attempts, (each) => (each.begun_at === null ? "" : moment(each.begun_at))),
    line("Ended", attempts, (each) => (each.ended_at === null ? "" : moment(each.ended_at))),
    line("Error, or why it was replayed", attempts, (each) => each.why ?? "", differs),
    line("Batch", attempts, (each) => each.size ?? "", isOtherSize),
    line("DAG version", attempts, (each) => each.dag_versions.join(", "), differs),
    ...tasks.map((name) => taskLine(name, attempts)),
  ];
  return lines.filter((each) => each.cells.some((cell) => cell.text !== ""));
}

/** @param changed compares with the attempt before; without it nothing does: a time is never the same. */
function line(name: string, attempts: readonly AttemptLine[], write: (each: AttemptLine) => string, changed: typeof differs = () => false): ComparedLine {
  const texts = attempts.map(write);
  return { name, cells: texts.map((text, index) => ({ text, changed: changed(texts[index - 1], text), log: null })) };
}

function taskLine(name: string, attempts: readonly AttemptLine[]): ComparedLine {
  const found = attempts.map((each) => each.tasks.find((task) => task.task_id === name) ?? null);
  const states = found.map((task) => (task === null ? "" : stateWords(task)));
  const cells = found.map((task, index) => ({
    text: task === null ? "" : taskWords(task),
    changed: differs(states[index - 1], states[index]!),
    log: task?.log ?? null,
  }));
  return { name, cells };
}

/** What is not known of one of two attempts has not changed. */
function differs(before: string | undefined, now: string): boolean {
  return before !== undefined && before !== "" && now !== "" && before !== now;
}

/** 2 files may have 7 rows, as may at most 9 rows: only the same words with another number say that a batch is another one. */
function isOtherSize(before: string | undefined, now: string): boolean {
  const words = (text = "") => text.replace(/\d+/g, "").replace(/s$/, "");
  return differs(before, now) && words(before) === words(now);
}

function stateWords(task: AttemptTask): string {
  const states = Object.entries(task.states)
    .map(([state, many]): [string, number] => [state === "none" ? "not started" : state, many])
    .sort(([a], [b]) => a.localeCompare(b));
  return states.length === 1 && states[0]![1] === 1 ? states[0]![0] : states.map(([state, many]) => `${many} ${state}`).join(", ");
}

function taskWords(task: AttemptTask): string {
  const instances = Object.values(task.states).reduce((sum, each) => sum + each, 0);
  const more = task.tries > instances ? `${task.tries} tries` : "";
  return [stateWords(task), more, task.seconds === null ? "" : duration(task.seconds)].filter(Boolean).join(", ");
}
