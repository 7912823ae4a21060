import { describe, expect, it } from "vitest";

import type { CauseLine, TopologyLine } from "../api/client";
import { causeWords, inOrder, pageWords } from "./causes";

const cause = (name: string, place: number) => ({ cause: name, place }) as CauseLine;
const topology = (name: string) => ({ topology: name }) as TopologyLine;
const names = (found: (CauseLine | TopologyLine)[]) => found.map((each) => ("cause" in each ? each.cause : each.topology));

describe("topologies that fail by one cause", () => {
  it("stand where the first of them would stand", () => {
    const causes = [cause("disk", 0), cause("login", 0), cause("price", 2)];
    expect(names(inOrder({ causes, topologies: [topology("a"), topology("b")] }))).toEqual(["disk", "login", "a", "b", "price"]);
    expect(names(inOrder({ causes: [cause("disk", 0)], topologies: [] }))).toEqual(["disk"]);
    expect(inOrder({ causes: [], topologies: [] })).toEqual([]);
  });

  it("are counted, with what is wrong", () => {
    expect(causeWords({ topologies: 12, sentence: "the disk is full" })).toBe("12 topologies: the disk is full");
  });

  it("make fewer lines than there are topologies", () => {
    expect(pageWords(0, 3, 3, 36)).toBe("36 topologies");
    expect(pageWords(50, 50, 120, 600)).toBe("51 to 100 of 120 lines, 600 topologies");
    expect(pageWords(0, 50, 600, 600)).toBe("1 to 50 of 600 topologies");
  });
});
