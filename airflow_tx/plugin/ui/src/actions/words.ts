/** What actions are called. */

import type { ActionName } from "../api/client";

export const WORDS: Record<ActionName, { button: string; grave?: boolean }> = {
  replay: { button: "Replay" },
  "replay-failed": { button: "Replay all failed" },
  skip: { button: "Skip", grave: true },
  readmit: { button: "Re-admit" },
  restate: { button: "Restate", grave: true },
  withdraw: { button: "Do not restate" },
  "accept-loss": { button: "Accept a loss", grave: true },
  "accept-check": { button: "Accept the check", grave: true },
  "accept-code": { button: "Accept the changed code", grave: true },
  "accept-change": { button: "Accept the change", grave: true },
  pause: { button: "Pause the coordinator" },
  unpause: { button: "Unpause the coordinator" },
  "state-rename": { button: "Rename the state", grave: true },
  "state-forget": { button: "Forget the state", grave: true },
  repair: { button: "Repair the state", grave: true },
};

/** The first and the last day of a restatement, such as 2026-05-01. */
export interface Days {
  first: string;
  last: string;
}

/** Says which transactions, checks or states an action is about, behind its name. */
export function titleOf(action: ActionName, topology: string, txids: readonly number[], days?: Days, names: readonly string[] = [], repair = ""): string {
  if (days) return `${buttonOf(action, repair)}: ${days.first} to ${days.last} of ${topology}`;
  const what = repair === "back" ? `transactions after ${txids.join()} of ${topology}` : aboutWords(topology, txids, action === "state-rename" ? [names.join(" to ")] : names);
  return `${buttonOf(action, repair)}: ${what}`;
}

const REPAIRS: Record<string, string> = {
  back: "Take transactions back",
  ends: "Extend the book of ends",
  "ledger-lost": "Rebuild the ledger",
  reset: "Reset the topology",
  "roll-forward": "Roll the state forward",
  "state-lost": "Accept the lost state",
};

/** Names a button. Each kind of repair has its own name. */
export function buttonOf(action: ActionName, repair = ""): string {
  return REPAIRS[repair] ?? WORDS[action].button;
}

/** Names checks or states and transactions, or their topology where there are none. */
export function aboutWords(topology: string, txids: readonly number[], names: readonly string[] = []): string {
  const transactions = txids.length === 0 ? "" : `transaction${txids.length > 1 ? "s" : ""} ${txids.join(", ")}`;
  return [names.join(", "), transactions, topology].filter((each) => each !== "").join(" of ");
}
