/** What became of many transactions that a person wanted at once, in words. */

import type { JobLine } from "../api/client";
import { count, counted } from "../parts/words";

const DONE: Record<JobLine["kind"], string> = { restatement: "restated", backfill: "committed", "tx-backfill": "committed" };

/** Says how far a job is: `17 of 30 restated, 2 failed, 1 under way, 10 wait`. */
export function progress(job: JobLine): string {
  const others: [number, string][] = [
    [job.failed, "failed"],
    [job.under_way, "under way"],
    [job.waiting, job.waiting === 1 ? "waits" : "wait"],
    [job.left_out, "skipped"],
  ];
  const of = `${count(job.done)} of ${count(job.total)} ${DONE[job.kind]}`;
  return [of, ...others.filter(([number]) => number > 0).map(([number, word]) => `${count(number)} ${word}`)].join(", ");
}

/** Whether nothing more happens to it by itself. */
export function isOver(job: JobLine): boolean {
  return job.under_way === 0 && job.waiting === 0;
}

/** Says what is not seen of a job: what the counts leave out, and what has failed and cannot be replayed here. */
export function notes(job: JobLine): string[] {
  const unnamed = job.failed - job.failed_txids.length;
  return [
    job.kind === "tx-backfill" ? "These are the runs that airflow tx backfill has created so far." : "",
    unnamed > 0 && job.kind !== "restatement" ? `${counted(unnamed, "run")} failed before a transaction began. The log of the task begin gives the reason. Clear that task in Airflow.` : "",
    unnamed > 0 && job.kind === "restatement" ? `${counted(unnamed, "run")} failed before the restatement began. The log of the task begin gives the reason. Start the waiting restatements to try again.` : "",
  ].filter(Boolean);
}
