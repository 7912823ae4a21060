import { describe, expect, it } from "vitest";

import { breaks, dragged, extent, fitted, fitting, LEAST_BAR, momentAt, position, labels, RANGES, shownFrom, ticks, zoneOffset, type Span, type Stretch } from "./scale";

const NOON = Date.parse("2026-03-10T12:00:00Z");
const HOUR = 3_600_000;

const measure = (text: string) => 6.5 * text.length;

/** What is written below a span. */
function axis(span: Span, width: number, zone: string, { moves = false } = {}): string[] {
  return labelled(span, width, zone, { moves }).map(({ text }) => text);
}

function labelled(span: Span, width: number, zone: string, { moves = false } = {}) {
  return labels(ticks(span, width, 70, zone), span, (at) => position(at, span, width), zone, moves, { left: 0, right: width, measure, moves });
}

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

  it("knows the distance of a zone from UTC", () => {
    expect(zoneOffset(NOON, "Asia/Kolkata")).toBe(330);
    expect([NOON, NOON + 2000 * HOUR].map((at) => zoneOffset(at, "Europe/Berlin"))).toEqual([60, 120]);
  });

  it("zooms to what was dragged over, in either direction, and not below ten seconds", () => {
    const span = { start: NOON - HOUR, end: NOON + HOUR };
    expect(dragged(50, 100, span, 200, NOON + HOUR)).toEqual({ range: 1800, until: NOON });
    expect(dragged(100, 50, span, 200, NOON + HOUR)).toEqual({ range: 1800, until: NOON });
    expect(dragged(50, 51, span, 7200, NOON)).toEqual({ range: 10, until: NOON - HOUR + 60_000 });
    expect(dragged(-20, 20, span, 200, NOON)).toEqual({ range: 720, until: NOON - 0.8 * HOUR });
  });

  it("stays live where one drags up to now", () => {
    const span = { start: NOON - HOUR, end: NOON + HOUR };
    expect(dragged(50, 150, span, 200, NOON)).toEqual({ range: 1800, until: null });
  });

  const hoursAgo = (...hours: number[]) => hours.map((each) => NOON - each * HOUR);

  it("opens from the first moment to the last one, or to now while something goes on", () => {
    expect(fitting(hoursAgo(0.1, 5), null, NOON)).toEqual({ start: NOON - 5 * HOUR, until: null });
    expect(fitting(hoursAgo(0.01), null, NOON)).toEqual({ start: NOON - 0.01 * HOUR, until: null });
    expect(fitting(hoursAgo(9_999), null, NOON)).toEqual({ start: NOON - 9_999 * HOUR, until: null });
    expect(fitting(hoursAgo(100, 99), NOON - 98 * HOUR, NOON)).toEqual({ start: NOON - 100 * HOUR, until: NOON - 98 * HOUR });
  });

  it("follows what comes next where the last moment is not long ago", () => {
    expect(fitting(hoursAgo(5), NOON - HOUR, NOON)).toEqual({ start: NOON - 5 * HOUR, until: null });
    expect(fitting(hoursAgo(0.1), NOON - 0.09 * HOUR, NOON).until).toBeNull();
  });

  it("has a span where nothing has happened, or all at one moment", () => {
    expect(fitting([], null, NOON)).toEqual({ start: NOON - HOUR / 6, until: null });
    const { start } = fitting([NOON + HOUR], null, NOON);
    expect(start).toBeLessThan(NOON);
  });
});

describe("the gaps of the scale", () => {
  const MINUTE = 60_000;
  const two = [
    { start: NOON, end: NOON + MINUTE },
    { start: NOON + 24 * HOUR, end: NOON + 24 * HOUR + MINUTE },
  ];
  const day = () => fitted(two, NOON, NOON + 24 * HOUR + MINUTE, 800);

  it("gives a day of nothing between two runs a few pixels", () => {
    const [only, ...more] = breaks(day(), 800);
    expect(more).toEqual([]);
    expect(only!.right - only!.left).toBeLessThan(20);
    expect(only!.seconds).toBeCloseTo(86_340, -1);
    for (const { start, end } of two) expect(position(end, day(), 800) - position(start, day(), 800)).toBeGreaterThan(350);
  });

  it("cuts what is empty before and after, too", () => {
    const span = fitted([two[0]!], NOON - HOUR, NOON + 24 * HOUR, 800);
    expect(breaks(span, 800)).toHaveLength(2);
    expect(position(NOON + MINUTE, span, 800) - position(NOON, span, 800)).toBeGreaterThan(600);
  });

  it("cuts no short gap, and none of a time in which nothing happened", () => {
    expect(fitted([{ start: NOON, end: NOON + 1000 }, { start: NOON + 9000, end: NOON + 9500 }], NOON, NOON + 9500, 800).cuts).toEqual([]);
    expect(fitted([{ start: NOON, end: NOON + HOUR }, { start: NOON + 1.05 * HOUR, end: NOON + 2 * HOUR }], NOON, NOON + 2 * HOUR, 800).cuts).toEqual([]);
    expect(fitted([], NOON, NOON + HOUR, 800).cuts).toEqual([]);
  });

  it("has labels beside a gap, none in it, and the day where it changes", () => {
    const found = ticks(day(), 800, 84);
    const [only] = breaks(day(), 800);
    const places = found.map((at) => position(at, day(), 800));
    expect(places.filter((x) => x > only!.left + 1 && x < only!.right - 1)).toEqual([]);
    expect(places.some((x) => x < only!.left)).toBe(true);
    expect(places.some((x) => x > only!.right)).toBe(true);
    const written = axis(day(), 800, "UTC", { moves: true });
    expect(written[0]).toBe("10 Mar 12:00");
    expect(written.filter((each) => each.startsWith("11 Mar"))).toHaveLength(1);
  });

  it("zooms over a gap to the moments at both ends", () => {
    const { range, until } = dragged(0, 800, day(), 800, NOON + 48 * HOUR);
    expect(range).toBeGreaterThan(86_400);
    expect(until).toBeGreaterThan(NOON + 24 * HOUR);
  });

  /** Any spans there are: of few or many times, close or far, on a wide or a narrow page. */
  function anySpan(seed: number) {
    let state = seed * 2654435761 + 1;
    const random = () => ((state = (state * 1103515245 + 12345) % 2147483648), state / 2147483648);
    const busy: Stretch[] = [];
    let at = NOON;
    for (let each = Math.floor(random() * 60); each >= 0; each--) {
      at += 10 ** (random() * 9);
      busy.push({ start: at, end: at + 10 ** (random() * 7) });
    }
    const width = 200 + Math.floor(random() * 1200);
    const [start, end] = [NOON + random() * 1e6, at + random() * 1e8 + 1e6];
    return { busy, start, end, width, span: fitted(busy, start, end, width), random };
  }

  it.each(Array.from({ length: 60 }, (_, seed) => seed))("stays in order, can be reversed, and shows every bar (%i)", (seed) => {
    const { busy, span, width, start, end, random } = anySpan(seed);
    expect(position(span.start, span, width)).toBeCloseTo(0, 6);
    expect(position(span.end, span, width)).toBeCloseTo(width, 6);
    const moments = [...Array.from({ length: 200 }, () => span.start + random() * (span.end - span.start)), start, end].sort((a, b) => a - b);
    for (const [index, at] of moments.entries()) {
      const x = position(at, span, width);
      if (index > 0 && at > moments[index - 1]!) expect(x).toBeGreaterThan(position(moments[index - 1]!, span, width));
      expect(Math.abs(momentAt(x, span, width) - at)).toBeLessThan(Math.max((span.end - span.start) * 1e-9, 0.01));
    }
    for (const each of busy) {
      const found = extent(each, span, width);
      if (found === null) continue;
      const [left, length] = found;
      expect(Math.min(left + length, width) - Math.max(left, 0)).toBeGreaterThanOrEqual(LEAST_BAR - 1e-6);
      // Nothing that happened lies in a gap.
      for (const cut of span.cuts ?? []) expect(each.end <= cut.start || each.start >= cut.end).toBe(true);
    }
    const cut = breaks(span, width);
    expect(cut.reduce((sum, { left, right }) => sum + right - left, 0)).toBeLessThanOrEqual(0.3 * width + 1e-6);
    for (const { left, right } of cut) expect(right - left).toBeGreaterThan(5.9);
    const places = ticks(span, width, 84).map((at) => position(at, span, width));
    for (const [index, x] of places.entries()) if (index > 0) expect(x - places[index - 1]!).toBeGreaterThanOrEqual(83);
  });

  it.each([[999.5, 1000], [-50, 1], [-50, 0], [1000, 1100], [500, 500], [-50, 1100]])("shows a bar from %d to %d at either end of the picture", (start, end) => {
    const [left, length] = extent({ start, end }, { start: 0, end: 1000 }, 1000)!;
    expect(Math.min(left + length, 1000) - Math.max(left, 0)).toBeGreaterThanOrEqual(LEAST_BAR);
    expect(extent({ start: 1001, end: 1002 }, { start: 0, end: 1000 }, 1000)).toBeNull();
  });

  it("asks for a time that an address may have", () => {
    expect(shownFrom({ start: NOON, end: NOON + 1000 }, NOON + HOUR)).toEqual({ range: 10, until: NOON + 10_000 });
    expect(shownFrom({ start: NOON, end: NOON + HOUR }, NOON + HOUR)).toEqual({ range: 3600, until: null });
    expect(shownFrom({ start: 0, end: NOON }, NOON + HOUR).range).toBe(3653 * 86_400);
  });
});

describe("the labels of the axis", () => {
  const from = (text: string, days: number): Span => ({ start: Date.parse(text), end: Date.parse(text) + days * 24 * HOUR });

  it("begin days where the zone's do", () => {
    expect(axis({ start: NOON - 72 * HOUR, end: NOON }, 300, "Asia/Kolkata")).toEqual(["8 Mar", "9 Mar", "10 Mar"]);
  });

  it("write the time of day, with seconds where the minute is not whole", () => {
    expect(axis({ start: NOON - 1000, end: NOON + 9000 }, 200, "UTC")).toEqual(["12:00", "12:00:05"]);
  });

  it("write the year where another one begins", () => {
    expect(axis(from("2025-12-30T12:00:00Z", 4), 400, "UTC")).toEqual(["31 Dec 2025", "1 Jan 2026", "2 Jan", "3 Jan"]);
  });

  it("write the year of the only one of two years", () => {
    expect(axis(from("2025-05-01T00:00:00Z", 577), 120, "UTC")).toEqual(["1 Jan 2026"]);
  });

  it("write months of two years, each with what tells it from the same one of another year", () => {
    const written = axis(from("2024-11-28T00:00:00Z", 730), 900, "Europe/Berlin");
    expect(written).toEqual(["1 Jan 2025", "1 Apr", "1 Jul", "1 Oct", "1 Jan 2026", "1 Apr", "1 Jul", "1 Oct"]);
  });

  it.each(["Europe/Berlin", "America/New_York", "Africa/Cairo", "Australia/Lord_Howe"])("write days over a change of the clock of %s", (zone) => {
    for (const days of [4, 9, 14]) {
      for (const begin of ["2026-03-05T12:00:00Z", "2026-03-27T12:00:00Z", "2026-04-20T12:00:00Z", "2026-10-20T12:00:00Z", "2026-10-28T12:00:00Z"]) {
        for (const text of axis(from(begin, days), 70 * (days + 1), zone)) expect(text).toMatch(/^\d+ [A-Z][a-z]+$/);
      }
    }
  });

  it("tell the hour that comes twice from the one before it", () => {
    const written = axis({ start: Date.parse("2026-10-25T00:00:00Z"), end: Date.parse("2026-10-25T02:00:00Z") }, 700, "Europe/Berlin");
    expect(written.slice(0, 4)).toEqual(["02:15", "02:30", "02:45", "02:00 GMT+1"]);
  });

  it.each(Array.from({ length: 40 }, (_, seed) => seed))("are whole: nothing lies outside, or on another one (%i)", (seed) => {
    const width = 180 + 37 * seed;
    const day = 24 * HOUR;
    const busy = Array.from({ length: 1 + (seed % 7) }, (_, each) => ({ start: NOON + each * (seed % 5) * day, end: NOON + each * (seed % 5) * day + (1 + seed) * 60_000 }));
    const whole = [fitted(busy, NOON - seed * HOUR, NOON + 40 * day, width), from("2025-11-28T13:00:00Z", 0.01 * 1.4 ** seed)];
    for (const [index, span] of whole.entries()) {
      const found = labelled(span, width, "Europe/Berlin", { moves: index === 0 });
      for (const [at, { x, text }] of found.entries()) {
        expect(x - measure(text) / 2).toBeGreaterThanOrEqual(-0.5);
        expect(x + measure(text) / 2).toBeLessThanOrEqual(width + 0.5);
        const before = found[at - 1];
        if (before) expect(x - measure(text) / 2).toBeGreaterThan(before.x + measure(before.text) / 2);
      }
    }
  });
});
