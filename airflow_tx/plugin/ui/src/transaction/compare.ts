/** The attempts of a transaction below each other: what is the same, and what has changed. */

import type { AttemptLine } from "../api/client";
import { duration, moment } from "../parts/words";

type AttemptTask = AttemptLine["tasks"][number];

export interface Compared {
  text: string;
  /** Whether it differs from the attempt before, as far as both are known. */
  changed: boolean;
}

export interface ComparedTask extends Compared {
  name: string;
  log: AttemptTask["log"];
}

/** The column of the errors. */
export const ERRORS = "Error or reason of the replay";

export interface ComparedColumn {
  name: string;
  cells: Compared[];
}

/** Gives the columns of the comparison, with a cell for each attempt. */
export function compare(attempts: readonly AttemptLine[]): ComparedColumn[] {
  const columns = [
    column("Outcome", attempts, (each) => each.outcome.toLowerCase()),
    column("Begun", attempts, (each) => (each.begun_at === null ? "" : moment(each.begun_at))),
    column("Took", attempts, took),
    { name: "Batch", cells: attempts.map(({ size, resized }, index) => ({ text: size ?? "", changed: resized && index > 0 })) },
    column("DAG version", attempts, (each) => each.dag_versions.join(", "), differs),
    errors(attempts),
  ];
  return columns.filter((each) => each.cells.some((cell) => cell.text !== ""));
}

/** Gives the tasks of each attempt that a person has to look at: those that failed, that have not run, or that have changed. */
export function notable(attempts: readonly AttemptLine[]): ComparedTask[][] {
  const before = (index: number, name: string) => attempts[index - 1]?.tasks.find((task) => task.task_id === name);
  return attempts.map(({ tasks }, index) =>
    tasks
      .map((task) => {
        const earlier = before(index, task.task_id);
        const changed = differs(earlier && stateWords(earlier), stateWords(task));
        return { name: task.task_id, text: taskWords(task), changed, log: task.log, fine: everySucceeded(task) };
      })
      .filter(({ fine, changed }) => !fine || changed)
      .map(({ name, text, changed, log }) => ({ name, text, changed, log })),
  );
}

function everySucceeded(task: AttemptTask): boolean {
  return Object.keys(task.states).every((state) => state === "success");
}

/** @param changed compares with the attempt before; without it nothing does: a time is never the same. */
function column(name: string, attempts: readonly AttemptLine[], write: (each: AttemptLine) => string, changed: typeof differs = () => false): ComparedColumn {
  const texts = attempts.map(write);
  return { name, cells: texts.map((text, index) => ({ text, changed: changed(texts[index - 1], text) })) };
}

/** A text stands once: above the attempts, or at the first attempt that has it. */
function errors(attempts: readonly AttemptLine[]): ComparedColumn {
  const shown = attempts[0]?.attempt ?? 0;
  const cells = attempts.map((each, index) => {
    if (each.why === null) return { text: "", changed: false };
    const before = attempts[index - 1];
    const changed = before !== undefined && before.why !== null && before.same_as !== each.same_as;
    if (each.above) return { text: "the error above", changed };
    return { text: each.same_as < each.attempt && each.same_as >= shown ? `as in attempt ${each.same_as}` : each.why, changed };
  });
  return { name: ERRORS, cells };
}

function took({ begun_at, ended_at }: AttemptLine): string {
  return begun_at === null || ended_at === null ? "" : duration((Date.parse(ended_at) - Date.parse(begun_at)) / 1000);
}

/** What is not known of one of two attempts has not changed. */
function differs(before: string | undefined, now: string): boolean {
  return before !== undefined && before !== "" && now !== "" && before !== now;
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
