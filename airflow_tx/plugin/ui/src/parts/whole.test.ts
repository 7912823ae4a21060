import { describe, expect, it } from "vitest";

import { shortened } from "./whole";

const inRoom = (text: string, room: number) => shortened(text, (each) => each.length <= room);

describe("a text that does not fit", () => {
  it.each([
    ["2026-11-28 06:00 to 2026-11-29 06:00", 30, "2026-11-28 06:00 to…"],
    ["2026-11-28 06:00 to 2026-11-29 06:00", 12, "2026-11-28…"],
    ["2026-11-28 06:00 to 2026-11-29 06:00", 9, "…"],
    ["/data/shop/orders_2026-11-28.csv", 24, "…orders_2026-11-28.csv"],
    ["/data/shop/orders_2026-11-28.csv", 18, "…2026-11-28.csv"],
    ["orders-0:17-40", 10, "…0:17-40"],
    ["1234567890123", 8, "…"],
    ["28 Nov", 6, "28 Nov"],
  ])("%s is shortened in %i places to %s", (text, room, expected) => expect(inRoom(text, room)).toBe(expected));

  it("never has a part of a number", () => {
    for (const text of ["restates 12; rows 17 to 40", "files/2026/11/28/part-00017.parquet", "a1.5b 12:30:45,250", "2026-11-28T06:00:00+00:00/2026-11-29T06:00:00+00:00"]) {
      const numbers = text.match(/\d+([.:-]\d+)*/g)!;
      for (let room = 1; room < text.length; room++) for (const each of inRoom(text, room).match(/\d+([.:-]\d+)*/g) ?? []) expect(numbers).toContain(each);
    }
  });
});
