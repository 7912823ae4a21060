/** Which rows of a long list are drawn: those in view, and a few around them. */

export interface Rows {
  first: number;
  /** Exclusive. */
  last: number;
}

/** Gives the rows to draw of a list that is scrolled to `top` in a box of this height. */
export function visibleRows(top: number, height: number, rowHeight: number, count: number, around = 12): Rows {
  const first = Math.max(Math.floor(top / rowHeight) - around, 0);
  const last = Math.min(Math.ceil((top + height) / rowHeight) + around, count);
  return { first: Math.min(first, last), last };
}

/** Gives where to scroll so that a row is in view; undefined: it is. */
export function scrollFor(row: number, top: number, height: number, rowHeight: number): number | undefined {
  if (row * rowHeight < top) return row * rowHeight;
  if ((row + 1) * rowHeight > top + height) return (row + 1) * rowHeight - height;
  return undefined;
}
