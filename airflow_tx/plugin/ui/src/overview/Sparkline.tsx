/** Commits an hour, as a row of thin bars. */

import { counted } from "../parts/words";

const HEIGHT = 20;
const STEP = 4;

/** Draws the numbers, the newest at the right, and says them in a sentence. */
export function Sparkline({ values }: { values: readonly number[] }) {
  const most = Math.max(...values, 1);
  return (
    <svg aria-label={spokenCommits(values)} height={HEIGHT} role="img" width={values.length * STEP}>
      {values.map((value, index) => {
        const tall = value === 0 ? 1 : Math.max((value / most) * HEIGHT, 2);
        const color = value === 0 ? "border-emphasized" : "green-solid";
        return <rect fill={`var(--chakra-colors-${color})`} height={tall} key={index} width={STEP - 1} x={index * STEP} y={HEIGHT - tall} />;
      })}
      <title>{spokenCommits(values)}</title>
    </svg>
  );
}

/** Says how many commits there were. */
export function spokenCommits(values: readonly number[]): string {
  const sum = values.reduce((all, each) => all + each, 0);
  return `${counted(sum, "commit")} in ${values.length} h, ${values.at(-1) ?? 0} in the last one`;
}
