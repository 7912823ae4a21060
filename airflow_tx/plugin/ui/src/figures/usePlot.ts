/** A canvas of uPlot: as wide as its box, in the colours of the theme, drawn again only if something has changed. */

import { useLayoutEffect, useRef, type RefObject } from "react";
import uPlot from "uplot";

import { fontOf, shortened, textWidth } from "../parts/whole";
import { timeZone } from "../parts/words";
import { labels as timeLabels, position, ticks } from "../timeline/scale";
import type { Drawn, Line } from "./charts";
import { labels, steps } from "./ticks";

/** Left of a plot: the room for the labels of its values, which is more where one is wider, and for their unit. */
const VALUES = 48;
const UNIT = 16;
/** Right of a plot, where the middle of a label may be at its end. */
const END = 8;
const bars = uPlot.paths.bars!({ size: [0.8, 100] });

/** What the library needs of CSS. */
export const LOOK = {
  "& .u-wrap": { position: "relative", userSelect: "none" },
  "& .u-over, & .u-under, & .u-axis": { position: "absolute" },
  "& canvas": { display: "block", height: "100%", width: "100%" },
  "& .u-cursor-x": { borderRightWidth: "1px", borderColor: "fg.muted", height: "100%", left: 0, pointerEvents: "none", position: "absolute", top: 0 },
  "& .u-off": { display: "none" },
};

type Color = (token: string) => string;

/** Draws into the box; gives the box and the plot in it. */
export function usePlot(drawn: Drawn, height: number, axes: boolean): [RefObject<HTMLDivElement | null>, RefObject<uPlot | null>] {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  useLayoutEffect(() => {
    const room = box.current!;
    const color: Color = (token) => getComputedStyle(room).getPropertyValue(`--chakra-colors-${token}`);
    const data = [drawn.x, ...drawn.lines.map(({ values }) => values)] as uPlot.AlignedData;
    const made = new uPlot({ ...options(drawn, color, axes, height), height, width: room.clientWidth }, data, room);
    plot.current = made;
    const sizes = new ResizeObserver(() => {
      if (room.clientWidth !== made.width) made.setSize({ height, width: room.clientWidth });
    });
    sizes.observe(room);
    // A canvas has no colours of its own theme: Airflow names the theme in the class of the page.
    const theme = new MutationObserver(() => made.redraw());
    theme.observe(document.documentElement, { attributeFilter: ["class"] });
    return () => {
      sizes.disconnect();
      theme.disconnect();
      made.destroy();
    };
  }, [drawn, height, axes]);
  return [box, plot];
}

function options({ start, end, unknown, unit, lines }: Drawn, color: Color, axes: boolean, height: number): Omit<uPlot.Options, "width" | "height"> {
  const zone = timeZone();
  const font = fontOf(11);
  const measure = (text: string) => textWidth(text, font);
  const most = Math.max(...lines.flatMap(({ values }) => values.map((value) => value ?? 0)));
  const axis = { font, grid: { stroke: () => color("border"), width: 1 }, labelFont: font, show: axes, stroke: () => color("fg-muted"), ticks: { show: false } };
  const span = { start: start * 1000, end: end * 1000 };
  // Round times of the zone, also after the clock was changed.
  const wide = (plot: uPlot) => plot.bbox.width / uPlot.pxRatio;
  const moments = (plot: uPlot) => ticks(span, wide(plot), 60, zone);
  const whole = (plot: uPlot) => timeLabels(moments(plot), span, (at) => position(at, span, wide(plot)), zone, false, { left: -VALUES, right: wide(plot) + END, measure });
  return {
    axes: [
      {
        ...axis,
        size: 20,
        splits: (plot) => moments(plot).map((at) => at / 1000),
        values: (plot, found) => found.map((at) => whole(plot).find((each) => each.at === at * 1000)?.text ?? ""),
      },
      {
        ...axis,
        gap: 4,
        incrs: steps(unit),
        // Room for a label everywhere: the plots of all charts begin at the same place.
        label: unit === "s" || unit === "" ? " " : shortened(unit, (each) => measure(each) <= height - 14),
        labelGap: 0,
        labelSize: UNIT,
        size: (_, found) => Math.max(VALUES, Math.ceil(Math.max(0, ...(found ?? []).map(measure))) + 6),
        space: 28,
        values: (_, found) => labels(found, unit),
      },
    ],
    cursor: { drag: { setScale: false, x: false, y: false }, points: { show: false }, y: false },
    hooks: {
      drawClear: [
        (plot) => {
          if (unknown === null) return;
          plot.ctx.fillStyle = color("bg-emphasized");
          plot.ctx.fillRect(plot.bbox.left, plot.bbox.top, plot.valToPos(Math.min(unknown, end), "x", true) - plot.bbox.left, plot.bbox.height);
        },
      ],
    },
    legend: { show: false },
    padding: axes ? [8, END, 0, 0] : [0, 0, 0, 0],
    scales: { x: { range: [start, end] }, y: { range: [0, (most || 1) * 1.05] } },
    series: [{}, ...lines.map((line) => series(line, color))],
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), zone!),
  };
}

export function series({ look, color: token }: Line, color: Color): uPlot.Series {
  const shade = () => color(token);
  if (look === "bar") return { fill: shade, paths: bars, points: { show: false }, width: 0 };
  const dash = { bar: [], dashed: [3, 3], limit: [8, 4], line: [] }[look];
  return { dash, points: { fill: shade, show: look !== "limit", size: 4 }, spanGaps: false, stroke: shade, width: 1.5 };
}
