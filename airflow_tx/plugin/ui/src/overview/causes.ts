/** How topologies that fail by one cause are listed among the others. */

import type { CauseLine, TopologyLine, TopologyList } from "../api/client";
import { counted } from "../parts/words";

/** Puts causes and topologies into the order in which the server sorted them. */
export function inOrder({ topologies, causes }: Pick<TopologyList, "topologies" | "causes">): (TopologyLine | CauseLine)[] {
  const found: (TopologyLine | CauseLine)[] = [];
  for (let place = 0; place <= topologies.length; place++) {
    found.push(...causes.filter((each) => each.place === place));
    if (place < topologies.length) found.push(topologies[place]!);
  }
  return found;
}

/** Says how many topologies fail by a cause, and what it is. */
export function causeWords({ topologies, sentence }: Pick<CauseLine, "topologies" | "sentence">): string {
  return `${counted(topologies, "topology", "topologies")}: ${sentence}`;
}

/** Says which lines a page has. Lines and topologies differ in number where a line stands for several topologies. */
export function pageWords(offset: number, shown: number, lines: number, total: number): string {
  const all = counted(total, "topology", "topologies");
  if (shown >= lines) return all;
  const page = `${offset + 1} to ${offset + shown} of`;
  return lines === total ? `${page} ${all}` : `${page} ${counted(lines, "line")}, ${all}`;
}
