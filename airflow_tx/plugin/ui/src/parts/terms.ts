/** What the words of the protocol mean. The glossary of the documentation has all of them. */

interface Term {
  title: string;
  text: string;
  /** The page of the documentation. */
  docs: string;
}

const of = (title: string, docs: string, text: string): Term => ({ title, text, docs: `docs/${docs}` });

export const TERMS = {
  topology: of("Topology", "architecture.md", "One transactional DAG, with its ledger. Its runs are the transactions."),
  txid: of("txid", "glossary.md", "The number of a transaction. Transactions commit in this order. A replay keeps the number."),
  next: of(
    "Next to commit",
    "protocol.md",
    "Transactions commit one after the other, by txid. This transaction has the turn: all later ones wait for it.",
  ),
  open: of("Open", "options.md", "Transactions that can still change. max_pending limits how many there are at once."),
  lag: of("Lag", "metrics.md", "The data in the source that no transaction has taken."),
  attempt: of("Attempt", "replay.md", "The number of a replay of a transaction, from 1. Attempt 2 of transaction 7 is written 7.2."),
  ack: of(
    "Ack value",
    "acks.md",
    "The XOR of all ids that tasks have emitted and acked. It is 0 when every emitted id was acked.",
  ),
  rejected: of(
    "Rejected row",
    "howto/keep-bad-rows-aside.md",
    "A row that a task, or its source, keeps aside. The commit puts it into a table for such rows.",
  ),
  check: of(
    "Check",
    "howto/check-before-you-publish.md",
    "A rule that the output must pass before its commit. A failed check refuses the commit until a person acts, or notes a warning.",
  ),
  fence: of(
    "Fence",
    "fence.md",
    "The token in a state that names the newest commit. The state refuses writers with an older token.",
  ),
  token: of(
    "Token",
    "fence.md",
    "The rank of a commit: generation, txid, attempt and epoch. A later token outranks an earlier one.",
  ),
  digest: of("Digest of rows", "rows.md", "The sum of the hashes of all rows. The same rows have the same digest in any order."),
  position: of("Position", "sources.md", "The place in the source after a batch. The next batch begins there."),
  receipt: of("Receipt", "receipts.md", "The record of a transaction and its writes, with the hash of the receipt before it."),
  stale: of("Stale", "replay.md", "The batch does not begin where the transaction before it ended. A replay reads the right rows."),
  readmit: of("Re-admit", "replay.md", "The rows of a skipped transaction come back as a new transaction."),
  restate: of("Restate", "protocol.md", "A committed transaction is processed again, as a new one. The new one replaces what the old one counted."),
} satisfies Record<string, Term>;

export type TermName = keyof typeof TERMS;
