import { describe, expect, it } from "vitest";

import { fieldMoment, fieldText, zoneName } from "./fields";

const at = (text: string) => Date.parse(text);

describe("the fields for a time", () => {
  it.each([
    ["UTC", "2026-01-01T00:05:07"],
    ["Asia/Kolkata", "2026-01-01T05:35:07"],
    ["America/New_York", "2025-12-31T19:05:07"],
  ])("has the time of %s", (zone, text) => {
    expect(fieldText(at("2026-01-01T00:05:07Z"), zone)).toBe(text);
    expect(fieldMoment(text, zone)).toBe(at("2026-01-01T00:05:07Z"));
  });

  it("reads what it writes around a change of the clock", () => {
    for (let hour = -30; hour < 30; hour++) {
      const moment = at("2026-03-29T01:00:00Z") + hour * 3_600_000;
      expect(fieldMoment(fieldText(moment, "Europe/Berlin"), "Europe/Berlin")).toBe(moment);
    }
  });

  it("reads a field without seconds, and nothing of what is no moment", () => {
    expect(fieldMoment("2026-01-01T00:05", "UTC")).toBe(at("2026-01-01T00:05:00Z"));
    expect(fieldMoment("", "UTC")).toBeNull();
    expect(fieldMoment("soon", "UTC")).toBeNull();
  });

  it("leaves out seconds that are 0, as the field does", () => {
    expect(fieldText(at("2026-01-01T00:05:00Z"), "UTC")).toBe("2026-01-01T00:05");
    expect(fieldText(at("2026-01-01T00:00:00Z"), "UTC")).toBe("2026-01-01T00:00");
  });

  it("names a zone", () => {
    expect(zoneName("Europe/Berlin")).toBe("Europe/Berlin");
    expect(zoneName(undefined)).not.toBe("");
  });
});
