import { describe, expect, it } from "vitest";

import { afterKey, moved } from "./strip";

const known = { start: 0, end: 1_000_000 };
const shown = { start: 200_000, end: 400_000 };

describe("the window on all time", () => {
  it("is moved as a whole, and keeps its length at the ends of what is known", () => {
    expect(moved(shown, "both", 50_000, known)).toEqual({ start: 250_000, end: 450_000 });
    expect(moved(shown, "both", -900_000, known)).toEqual({ start: 0, end: 200_000 });
    expect(moved(shown, "both", 900_000, known)).toEqual({ start: 800_000, end: 1_000_000 });
  });

  it("is resized at either end, and never turns inside out", () => {
    expect(moved(shown, "start", -50_000, known)).toEqual({ start: 150_000, end: 400_000 });
    expect(moved(shown, "end", 50_000, known)).toEqual({ start: 200_000, end: 450_000 });
    expect(moved(shown, "start", 900_000, known)).toEqual({ start: 390_000, end: 400_000 });
    expect(moved(shown, "end", -900_000, known)).toEqual({ start: 200_000, end: 210_000 });
  });

  it("is not longer than what is known once it is moved", () => {
    expect(moved({ start: -900_000, end: 1_000_000 }, "both", 10, known)).toEqual(known);
  });

  it("follows the keys of a slider", () => {
    expect(afterKey("ArrowRight", shown, "both", known)).toEqual({ start: 210_000, end: 410_000 });
    expect(afterKey("ArrowLeft", shown, "end", known)).toEqual({ start: 200_000, end: 390_000 });
    expect(afterKey("PageUp", shown, "start", known)).toEqual({ start: 300_000, end: 400_000 });
    expect(afterKey("Home", shown, "both", known)).toEqual({ start: 0, end: 200_000 });
    expect(afterKey("End", shown, "end", known)).toEqual({ start: 200_000, end: 1_000_000 });
    expect(afterKey("x", shown, "both", known)).toBeNull();
  });
});
