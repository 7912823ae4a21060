import { describe, expect, it } from "vitest";

import { dragged, fitting, position, RANGES, tickLabel, ticks, zoneOffset } from "./scale";

const NOON = Date.parse("2026-03-10T12:00:00Z");
const HOUR = 3_600_000;

describe("the scale", () => {
  it("places moments between the ends of a span", () => {
    const span = { start: NOON, end: NOON + HOUR };
    expect([NOON, NOON + HOUR / 2, NOON + HOUR, NOON - HOUR].map((at) => position(at, span, 200))).toEqual([0, 100, 200, -200]);
  });

  it.each(RANGES.map(({ seconds, label }) => [label, seconds]))("labels round moments of %s", (_, seconds) => {
    const span = { start: NOON - Number(seconds) * 1000 + 12_345, end: NOON + 12_345 };
    const found = ticks(span, 900, 70);
    expect(found.length).toBeGreaterThan(2);
    expect(found.length).toBeLessThan(14);
    const apart = new Set(found.slice(1).map((at, index) => at - found[index]!));
    expect(apart.size).toBe(1);
    expect(position(found[1]!, span, 900) - position(found[0]!, span, 900)).toBeGreaterThanOrEqual(70);
    expect(found.every((at) => at % (seconds === 60 ? 1000 : 60_000) === 0 && at >= span.start && at <= span.end)).toBe(true);
  });

  it("has no labels without a width", () => expect(ticks({ start: 0, end: HOUR }, 0, 70)).toEqual([0]));

  it("begins days where the zone's do", () => {
    const offset = zoneOffset(NOON, "Asia/Kolkata");
    expect(offset).toBe(330);
    const found = ticks({ start: NOON - 72 * HOUR, end: NOON }, 300, 70, offset);
    expect(found.map((at) => tickLabel(at, "Asia/Kolkata"))).toEqual(["8 Mar", "9 Mar", "10 Mar"]);
  });

  it("writes the time of day, with seconds where the minute is not whole", () => {
    expect(tickLabel(NOON, "UTC")).toBe("12:00");
    expect(tickLabel(NOON + 5000, "UTC")).toBe("12:00:05");
  });

  it("zooms to what was dragged over, in either direction, and not below a minute", () => {
    const span = { start: NOON - HOUR, end: NOON + HOUR };
    expect(dragged(50, 100, span, 200, NOON + HOUR)).toEqual({ range: 1800, until: NOON });
    expect(dragged(100, 50, span, 200, NOON + HOUR)).toEqual({ range: 1800, until: NOON });
    expect(dragged(50, 51, span, 7200, NOON)).toEqual({ range: 60, until: NOON - HOUR + 110_000 });
    expect(dragged(-20, 20, span, 200, NOON)).toEqual({ range: 720, until: NOON - 0.8 * HOUR });
  });

  it("stays live where one drags up to now", () => {
    const span = { start: NOON - HOUR, end: NOON + HOUR };
    expect(dragged(50, 150, span, 200, NOON)).toEqual({ range: 1800, until: null });
  });

  const hoursAgo = (...hours: number[]) => hours.map((each) => NOON - each * HOUR);

  it("shows at first what is there, up to now while something goes on", () => {
    expect(fitting([], null, NOON)).toEqual({ range: 600, until: null });
    expect(fitting(hoursAgo(0.1, 0.05), null, NOON)).toEqual({ range: 600, until: null });
    expect(fitting(hoursAgo(0.1, 5), null, NOON)).toEqual({ range: 21_600, until: null });
    expect(fitting(hoursAgo(25), null, NOON)).toEqual({ range: 94_737, until: null });
    expect(fitting(hoursAgo(9_999), null, NOON)).toEqual({ range: 2_592_000, until: null });
    expect(fitting([NOON + HOUR], null, NOON)).toEqual({ range: 600, until: null });
  });

  it("shows at first when it went on, if that is long ago", () => {
    expect(fitting(hoursAgo(5), NOON - HOUR, NOON)).toEqual({ range: 21_600, until: null });
    const { range, until } = fitting(hoursAgo(100, 99), NOON - 98 * HOUR, NOON);
    expect(range).toBe(7_579);
    expect(until! - range * 1000).toBeLessThan(NOON - 100 * HOUR);
    expect(until!).toBeGreaterThan(NOON - 98 * HOUR);
    expect(fitting(hoursAgo(9_999), NOON - 9_999 * HOUR, NOON).range).toBe(60);
  });
});
