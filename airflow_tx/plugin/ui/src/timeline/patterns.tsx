/** The fills of bars: told apart by their pattern, without colour. */

import type { BarKind } from "./bars";

const color = (name: string) => `var(--chakra-colors-${name})`;

export const FILLS: Record<BarKind, { fill: string; stroke: string }> = {
  processing: { fill: color("blue-muted"), stroke: color("blue-fg") },
  failed: { fill: "url(#tx-crossed)", stroke: color("red-fg") },
  waiting: { fill: "url(#tx-hatched)", stroke: color("fg-muted") },
  commit: { fill: color("green-solid"), stroke: color("green-fg") },
  replaced: { fill: color("bg"), stroke: color("green-fg") },
};

/** Defines the patterns; once on each page that draws bars. */
export function Patterns() {
  return (
    <svg aria-hidden height="0" style={{ position: "absolute" }} width="0">
      <defs>
        <pattern height="6" id="tx-hatched" patternTransform="rotate(45)" patternUnits="userSpaceOnUse" width="6">
          <rect fill={color("bg")} height="6" width="6" />
          <line stroke={color("fg-muted")} strokeWidth="2" x1="1" x2="1" y1="0" y2="6" />
        </pattern>
        <pattern height="6" id="tx-crossed" patternTransform="rotate(45)" patternUnits="userSpaceOnUse" width="6">
          <rect fill={color("bg")} height="6" width="6" />
          <path d="M0 3h6M3 0v6" stroke={color("red-fg")} strokeWidth="1.2" />
        </pattern>
      </defs>
    </svg>
  );
}
