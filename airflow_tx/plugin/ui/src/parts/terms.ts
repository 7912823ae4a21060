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
  lag: of("Lag", "metrics.md", "How much data the source has that no transaction has taken."),
  attempt: of("Attempt", "replay.md", "Which replay of a transaction it is, from 1. Attempt 2 of transaction 7 is written 7.2."),
  ack: of(
    "Ack value",
    "acks.md",
    "All ids that tasks emit and ack, combined by XOR. It is 0 when everything that was emitted was acked.",
  ),
  rejected: of(
    "Rejected row",
    "howto/keep-bad-rows-aside.md",
    "A row that a task, or its source, keeps aside. The commit puts it into a table for such rows.",
  ),
  check: of(
    "Check",
    "howto/check-before-you-publish.md",
    "A rule for the output before its commit. If it fails, the commit is refused until a person acts, or a warning is noted.",
  ),
  fence: of(
    "Fence",
    "fence.md",
    "A state remembers the newest commit that may write to it. From then on it refuses writers of older attempts.",
  ),
  token: of(
    "Token",
    "fence.md",
    "The ledger gives it to each commit: generation, txid, attempt and epoch. A later token outranks an earlier one.",
  ),
  digest: of("Digest of rows", "rows.md", "The sum of the hashes of all rows. Equal rows have equal digests, in any order."),
  position: of("Position", "sources.md", "Where the source stands after a batch. The next batch begins there."),
  receipt: of("Receipt", "receipts.md", "The record of a transaction and its writes, with the hash of the receipt before it."),
  stale: of("Stale", "replay.md", "The transaction before it ended elsewhere than this batch begins. A replay takes the right rows."),
  readmit: of("Re-admit", "replay.md", "The rows of a skipped transaction come back as a new transaction."),
  restate: of("Restate", "protocol.md", "A committed transaction is processed again, as a new one. The new one replaces what the old one counted."),
} satisfies Record<string, Term>;

export type TermName = keyof typeof TERMS;
