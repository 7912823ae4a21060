/** Texts that stay whole, or are shortened so that nobody can read another value. */

let canvas: CanvasRenderingContext2D | null = null;

/** Gives the font of the page, of a size in pixels; the canvas of a chart has none of its own. */
export const fontOf = (size: number) => `${size}px ${getComputedStyle(document.body).fontFamily}`;

/** Measures a text, in pixels. */
export function textWidth(text: string, font: string): number {
  canvas ??= document.createElement("canvas").getContext("2d")!;
  canvas.font = font;
  return canvas.measureText(text).width;
}

const SIGN = "…";
/** Where a text may be cut: beside a word, but never within a number, a date or a time. */
const PLACES = /[\s,;/|()[\]{}=]+|(?<!\d)[_.:-]+|[_.:-]+(?!\d)/g;

/**
 * Shortens a text that does not fit: words and numbers stay whole, and a sign stands where others are left out. A name
 * without spaces keeps its end, which tells most of a file. Without room for a word there is the sign alone.
 */
export function shortened(text: string, fits: (text: string) => boolean): string {
  if (fits(text)) return text;
  const cuts = [...text.matchAll(PLACES)].map((each) => [each.index, each.index + each[0].length] as const);
  const parts = /\s/.test(text) ? cuts.reverse().map(([begin]) => `${text.slice(0, begin)}${SIGN}`) : cuts.map(([, end]) => `${SIGN}${text.slice(end)}`);
  return parts.find((each) => each !== SIGN && fits(each)) ?? SIGN;
}
