/** The bars of one transaction as SVG. */

import { memo } from "react";

import type { TimelineRow } from "../api/client";
import { moment, duration } from "../parts/words";
import { draw, type Bar, type BarKind, type Drawing } from "./bars";
import { FILLS } from "./patterns";
import { extent, position, type Span } from "./scale";

interface Place {
  span: Span;
  width: number;
  height: number;
}

interface Drawn {
  row: TimelineRow;
  now: number;
  /** Whether the browser says what a bar is, where nothing else does. */
  titled?: boolean;
}

/** Draws one transaction. What lies outside of the span is cut off. */
export const Plot = memo(function Plot({ row, now, titled = true, ...place }: Place & Drawn) {
  const drawing = draw(row, now);
  const x = (at: number) => clamp(position(at, place.span, place.width), place.width);
  const middle = place.height / 2;
  return (
    <svg aria-hidden display="block" height={place.height} width={place.width}>
      <line stroke="var(--chakra-colors-fg-subtle)" strokeWidth="1" x1={x(drawing.start)} x2={x(drawing.end)} y1={middle} y2={middle} />
      {drawing.bars.map((bar, index) => (
        <PlotBar bar={bar} drawing={drawing} index={index} key={index} titled={titled} {...place} />
      ))}
      {drawing.marks.map(({ at, attempt, title }) => (
        <g key={attempt} transform={`translate(${x(at)} 0)`}>
          <line stroke="var(--chakra-colors-fg)" strokeWidth="1.5" y1="2" y2={place.height - 2} />
          <text fill="var(--chakra-colors-fg)" style={{ fontSize: 10, paintOrder: "stroke" }} stroke="var(--chakra-colors-bg)" strokeWidth="3" {...besideMark(x(at), attempt)} y={place.height - 4}>
            {attempt}
          </text>
          <title>{title}</title>
        </g>
      ))}
    </svg>
  );
});

function PlotBar({ bar, drawing, index, titled, span, width, height }: Place & { bar: Bar; drawing: Drawing; index: number; titled: boolean }) {
  const found = extent(bar, span, width);
  if (found === null) return null;
  const [top, tall] = rows(bar, drawing.lanes, height);
  const { fill, stroke } = FILLS[bar.kind];
  return (
    <rect
      data-bar={index}
      data-kind={bar.kind}
      fill={fill}
      height={tall}
      rx="1.5"
      stroke={stroke}
      strokeDasharray={bar.open ? "3 2" : undefined}
      width={found[1]}
      x={found[0]}
      y={top}
    >
      {titled && <title>{`${bar.title}\n${moment(bar.start)}, ${duration((bar.end - bar.start) / 1000)}`}</title>}
    </rect>
  );
}

function rows(bar: Bar, lanes: number, height: number): [number, number] {
  const whole = height - 8;
  if (bar.kind === "commit" || bar.kind === "replaced") return [4, whole];
  if (bar.kind === "waiting") return [7, height - 14];
  const tall = whole / lanes;
  return [4 + bar.lane * tall, Math.max(tall - (lanes > 1 ? 1 : 0), 2)];
}

/** Puts the number of an attempt at the left of its line; at the right, where it would be cut. */
export function besideMark(x: number, attempt: number): { textAnchor: "start" | "end"; x: number } {
  return x < 4 + 7 * String(attempt).length ? { textAnchor: "start", x: 3 } : { textAnchor: "end", x: -3 };
}

/** Keeps an end that is far outside of the picture just outside of it. */
function clamp(x: number, width: number): number {
  return Math.min(Math.max(x, -4), width + 4);
}

const LEGEND: [BarKind, string][] = [
  ["processing", "processing"],
  ["failed", "failed try"],
  ["waiting", "waits to commit"],
  ["commit", "commit"],
  ["replaced", "commit that was restated"],
];

/** Says which pattern is what. */
export function LegendItems() {
  return LEGEND.map(([kind, word]) => (
    <span key={kind} style={{ alignItems: "center", display: "inline-flex", gap: 6, whiteSpace: "nowrap" }}>
      <svg aria-hidden height="12" width="26">
        <rect fill={FILLS[kind].fill} height="11" rx="1.5" stroke={FILLS[kind].stroke} width="25" x="0.5" y="0.5" />
      </svg>
      {word}
    </span>
  ));
}
