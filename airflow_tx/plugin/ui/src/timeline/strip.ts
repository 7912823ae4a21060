/** The window on all the time that is known: how it is moved and resized. */

import { NARROWEST, type Stretch } from "./scale";

/** What of the window is moved: one of its ends, or all of it. */
export type Grip = "start" | "end" | "both";

const LEAST = NARROWEST * 1000;

/** Moves a part of a window, which stays within what is known and keeps its least length. */
export function moved(shown: Stretch, grip: Grip, by: number, known: Stretch): Stretch {
  if (grip === "start") return { start: clamp(shown.start + by, known.start, Math.max(shown.end - LEAST, known.start)), end: shown.end };
  if (grip === "end") return { start: shown.start, end: clamp(shown.end + by, Math.min(shown.start + LEAST, known.end), known.end) };
  const length = Math.min(shown.end - shown.start, known.end - known.start);
  const start = clamp(shown.start + by, known.start, known.end - length);
  return { start, end: start + length };
}

const FAR = 10;
const ARROWS: Record<string, number> = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: FAR, PageDown: -FAR };

/** Gives the window after a key: an arrow moves it by a twentieth of its length; null: the key does nothing. */
export function afterKey(key: string, shown: Stretch, grip: Grip, known: Stretch): Stretch | null {
  if (key === "Home") return moved(shown, grip, -Infinity, known);
  if (key === "End") return moved(shown, grip, Infinity, known);
  const steps = ARROWS[key];
  if (steps === undefined) return null;
  return moved(shown, grip, steps * Math.max((shown.end - shown.start) / 20, 1000), known);
}

function clamp(value: number, least: number, most: number): number {
  return Math.min(Math.max(value, least), most);
}
