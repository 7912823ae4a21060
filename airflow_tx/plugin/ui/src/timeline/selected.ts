/** Which rows are selected after a person has pressed a box. */

/**
 * @param from the row that was pressed before, if the person selects through to this one; null: this one alone.
 * @param can whether a row can be selected.
 */
export function selectedAfter(before: ReadonlySet<number>, txid: number, on: boolean, from: number | null, can: (txid: number) => boolean): Set<number> {
  const after = new Set(before);
  const [first, last] = from === null ? [txid, txid] : [Math.min(from, txid), Math.max(from, txid)];
  for (let each = first; each <= last; each++) {
    if (!on) after.delete(each);
    else if (each === txid || can(each)) after.add(each);
  }
  return after;
}
