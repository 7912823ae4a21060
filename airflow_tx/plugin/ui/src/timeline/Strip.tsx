/** All the time that is known, how much happened when, and a window on what is shown: it is dragged and resized. */

import { Box, Flex, Text } from "@chakra-ui/react";
import { useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { useNavigate } from "react-router-dom";

import { api, type Activity } from "../api/client";
import { useLive, useLost } from "../api/live";
import type { Address } from "../parts/address";
import { duration, moment } from "../parts/words";
import { shownFrom, type Stretch } from "./scale";
import { afterKey, moved, type Grip } from "./strip";

const EVERY = 10_000;
const HEIGHT = 40;
const WIDE = 1000;
/** No window is narrower than this, in pixels, and no grip, or nobody could take hold of it. */
const GRIP = 24;

interface Props {
  topology: string;
  shown: Stretch;
  now: number;
  write: (changes: Partial<Address>) => string;
}

export function Strip({ topology, shown, now, write }: Props) {
  const query = useLive(["activity", topology], (signal) => api.activity(topology, signal), { every: EVERY });
  const navigate = useNavigate();
  const lost = useLost();
  if (!query.data || query.data.since === null) return null;
  const known = { start: Date.parse(query.data.since), end: Math.max(now, Date.parse(query.data.since) + 1000) };
  return (
    <Box mt={3}>
      <Flex color="fg.muted" fontSize="xs" gap={3} justify="space-between" wrap="wrap">
        <Text>{`Known since ${moment(known.start)}`}</Text>
        <Text>{lost === null ? "now" : moment(now)}</Text>
      </Flex>
      <Window activity={query.data} choose={(time) => void navigate(write(shownFrom(time, now)))} known={known} shown={shown} />
    </Box>
  );
}

function Window({ activity, known, shown, choose }: { activity: Activity; known: Stretch; shown: Stretch; choose: (time: Stretch) => void }) {
  const box = useRef<HTMLDivElement>(null);
  const [moving, setMoving] = useState<Stretch | null>(null);
  const drag = useRef<{ grip: Grip; from: number; shown: Stretch } | null>(null);
  const inside = { start: Math.min(Math.max(shown.start, known.start), known.end), end: Math.max(Math.min(shown.end, known.end), known.start) };
  const time = moving ?? inside;
  const share = (at: number) => (at - known.start) / (known.end - known.start);
  const finish = () => {
    if (moving) choose(moving);
    drag.current = null;
    setMoving(null);
  };
  const down = (grip: Grip) => (event: PointerEvent<HTMLElement>) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    drag.current = { grip, from: event.clientX, shown: inside };
  };
  const move = (event: PointerEvent) => {
    const [from, wide] = [drag.current, box.current?.clientWidth ?? 0];
    if (!from || wide === 0 || event.clientX === from.from) return;
    setMoving(moved(from.shown, from.grip, ((event.clientX - from.from) / wide) * (known.end - known.start), known));
  };
  const cancel = () => {
    drag.current = null;
    setMoving(null);
  };
  const key = (grip: Grip) => (event: KeyboardEvent) => {
    const next = afterKey(event.key, time, grip, known);
    if (next === null) return;
    event.preventDefault();
    setMoving(next);
  };
  const grip = (which: Grip) => ({
    "aria-valuemax": Math.round(known.end / 1000),
    "aria-valuemin": Math.round(known.start / 1000),
    // A pointer that takes hold of another grip takes the focus, too.
    onBlur: () => drag.current === null && finish(),
    onKeyDown: key(which),
    // The rows are asked for once a key is up: it may be held.
    onKeyUp: finish,
    onPointerCancel: cancel,
    onPointerDown: down(which),
    onPointerMove: move,
    onPointerUp: finish,
    role: "slider",
    tabIndex: 0,
  });
  return (
    <Box borderColor="border" borderWidth="1px" height={`${HEIGHT + 2}px`} position="relative" ref={box} style={{ touchAction: "pan-y" }}>
      <Box
        {...grip("both")}
        _focusVisible={FOCUS}
        aria-label="Shown time range"
        aria-valuenow={Math.round(time.start / 1000)}
        aria-valuetext={`${duration((time.end - time.start) / 1000)}, from ${moment(time.start)} until ${moment(time.end)}`}
        bg="blue.muted"
        borderColor="blue.fg"
        borderXWidth="2px"
        cursor="grab"
        height="100%"
        left={`min(${share(time.start) * 100}%, calc(100% - ${GRIP}px))`}
        minW={`${GRIP}px`}
        opacity={0.6}
        position="absolute"
        style={{ touchAction: "pan-y" }}
        top={0}
        width={`${(share(time.end) - share(time.start)) * 100}%`}
      />
      <Counts activity={activity} known={known} />
      {(["start", "end"] as const).map((end) => (
        <Box
          {...grip(end)}
          _focusVisible={FOCUS}
          aria-label={end === "start" ? "Shown from" : "Shown until"}
          aria-valuenow={Math.round(time[end] / 1000)}
          aria-valuetext={moment(time[end])}
          cursor="ew-resize"
          height="100%"
          key={end}
          left={end === "start" ? `max(calc(min(${share(time.start) * 100}%, 100% - ${GRIP}px) - ${GRIP}px), -${GRIP / 2}px)` : `min(max(${share(time.end) * 100}%, calc(min(${share(time.start) * 100}%, 100% - ${GRIP}px) + ${GRIP}px)), calc(100% - ${GRIP / 2}px))`}
          position="absolute"
          style={{ touchAction: "none" }}
          top={0}
          width={`${GRIP}px`}
        >
          <Box bg="blue.fg" borderRadius="sm" height="18px" left={end === "start" ? undefined : "2px"} pointerEvents="none" position="absolute" right={end === "start" ? "2px" : undefined} top="12px" width="5px" />
        </Box>
      ))}
    </Box>
  );
}

const FOCUS = { outline: "2px solid", outlineColor: "blue.focusRing", outlineOffset: "1px" };

function Counts({ activity, known }: { activity: Activity; known: Stretch }) {
  const most = Math.max(...activity.counts, 1);
  const x = (at: number) => ((at - known.start) / (known.end - known.start)) * WIDE;
  const wide = ((activity.step * 1000) / (known.end - known.start)) * WIDE;
  const total = activity.counts.reduce((sum, each) => sum + each, 0);
  return (
    <svg aria-label={`${total} known transactions, at most ${most} in ${duration(activity.step)}`} height={HEIGHT} preserveAspectRatio="none" role="img" style={{ display: "block", pointerEvents: "none", position: "relative" }} viewBox={`0 0 ${WIDE} ${HEIGHT}`} width="100%">
      {activity.counts.map((count, index) => {
        // One is seen beside many.
        const tall = 3 + (count / most) * (HEIGHT - 6);
        return count > 0 && <rect fill="var(--chakra-colors-green-solid)" height={tall} key={index} width={Math.max(wide * 0.85, 2)} x={Math.min(x(known.start + index * activity.step * 1000), WIDE - 2)} y={HEIGHT - tall} />;
      })}
    </svg>
  );
}
