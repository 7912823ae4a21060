/** One small chart as SVG: bars, or a solid line for p50 and a dashed one for p95; hatched: nothing is known. */

import type { ChartData, Dot } from "./charts";

const WIDTH = 100;
const HEIGHT = 44;
const color = (name: string) => `var(--chakra-colors-${name})`;

export function Chart({ chart }: { chart: ChartData }) {
  const y = (value: number) => HEIGHT - 2 - (chart.most === 0 ? 0 : (value / chart.most) * (HEIGHT - 6));
  const wide = chart.bars.length === 0 ? 0 : WIDTH / chart.bars.length;
  return (
    <svg aria-label={`${chart.title}: ${chart.words}`} height={HEIGHT} preserveAspectRatio="none" role="img" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width="100%">
      <line stroke={color("border")} vectorEffect="non-scaling-stroke" x2={WIDTH} y1={HEIGHT - 1} y2={HEIGHT - 1} />
      {chart.unknown > 0 && <rect fill={color("bg-emphasized")} height={HEIGHT - 2} opacity="0.7" width={chart.unknown * WIDTH} />}
      {chart.bars.map((bar) => bar.y > 0 && <rect fill={color("green-solid")} height={HEIGHT - 1 - y(bar.y)} key={bar.x} width={wide * 0.8} x={bar.x * WIDTH} y={y(bar.y)} />)}
      <Line dots={chart.above} stroke={color("orange-fg")} dashes="3 3" y={y} />
      <Line dots={chart.line} stroke={color("blue-fg")} y={y} />
    </svg>
  );
}

/** A line through dots; a single dot is a short line, or it would not be seen. */
function Line({ dots, stroke, dashes, y }: { dots: Dot[]; stroke: string; dashes?: string; y: (value: number) => number }) {
  const [only] = dots;
  if (only === undefined) return null;
  const all = dots.length > 1 ? dots : [{ ...only, x: only.x - 0.01 }, { ...only, x: only.x + 0.01 }];
  const points = all.map((dot) => `${dot.x * WIDTH},${y(dot.y)}`).join(" ");
  return <polyline fill="none" points={points} stroke={stroke} strokeDasharray={dashes} strokeWidth="1.5" vectorEffect="non-scaling-stroke" />;
}
