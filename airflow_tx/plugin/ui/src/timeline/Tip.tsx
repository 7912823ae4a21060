/** What a bar is, from when until when, and for how many seconds: beside the pointer's bar, or the one chosen by keys. */

import { Box, Text } from "@chakra-ui/react";
import { useCallback, useEffect, useState, type KeyboardEvent, type PointerEvent, type RefObject } from "react";

import type { TimelineRow } from "../api/client";
import { asideWords, duration, moment } from "../parts/words";
import { draw } from "./bars";

interface Chosen {
  txid: number;
  bar: number;
  byKeys: boolean;
  /** Where its bar is, in pixels within the box of the rows. */
  left: number;
  right: number;
  bottom: number;
}

const KEYS: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1 };

/** Gives the handlers of the box that holds the rows, and the bar that is chosen. */
export function useTip(box: RefObject<HTMLElement | null>) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const hide = useCallback(() => setChosen(null), []);
  useEffect(() => {
    if (chosen === null) return undefined;
    const listen = (event: globalThis.KeyboardEvent) => event.key === "Escape" && hide();
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, [chosen, hide]);
  const choose = (bar: Element | undefined, byKeys: boolean) => {
    const txid = Number(bar?.closest<HTMLElement>("[data-txid]")?.dataset["txid"]);
    const around = box.current?.getBoundingClientRect();
    if (!bar || !around) return hide();
    const { left, right, bottom } = bar.getBoundingClientRect();
    return setChosen({ txid, bar: Number(bar.getAttribute("data-bar")), byKeys, left: left - around.left, right: right - around.left, bottom: bottom - around.top });
  };
  const handlers = {
    onBlur: hide,
    onPointerLeave: hide,
    onPointerOver: (event: PointerEvent) => {
      const bar = (event.target as Element).closest("[data-bar]");
      if (bar) choose(bar, false);
      else if (chosen?.byKeys === false) hide();
    },
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = KEYS[event.key];
    const row = (event.target as HTMLElement).closest("[data-txid]");
    if (step === undefined || row === null) return;
    event.preventDefault();
    const bars = [...row.querySelectorAll("[data-bar]")];
    const at = bars.findIndex((each) => chosen?.txid === Number(row.getAttribute("data-txid")) && Number(each.getAttribute("data-bar")) === chosen.bar);
    choose(bars[at < 0 ? (step > 0 ? 0 : bars.length - 1) : Math.min(Math.max(at + step, 0), bars.length - 1)], true);
  };
  return { chosen, handlers, hide, onKeyDown };
}

/** @param room how wide the box of the rows is. */
export function Tip({ chosen, row, now, room }: { chosen: Chosen | null; row: TimelineRow | undefined; now: number; room: number }) {
  const bars = row === undefined ? [] : draw(row, now).bars;
  const bar = chosen === null ? undefined : bars[chosen.bar];
  const isLeft = chosen !== null && chosen.left > room / 2;
  return (
    <Box aria-live="polite" pointerEvents="none" role="status">
      {chosen !== null && bar !== undefined && row !== undefined && (
        <Box
          bg="bg.panel"
          borderColor="border"
          borderRadius="sm"
          borderWidth="1px"
          boxShadow="md"
          data-testid="tip"
          fontSize="xs"
          left={isLeft ? undefined : `${Math.max(chosen.left, 0)}px`}
          maxW="320px"
          p={2}
          position="absolute"
          right={isLeft ? `${Math.max(room - chosen.right, 0)}px` : undefined}
          top={`${chosen.bottom + 4}px`}
          zIndex="tooltip"
        >
          <Text fontWeight="semibold" overflowWrap="anywhere">{`Transaction ${row.txid}: ${bar.title}`}</Text>
          <Text>{`from ${moment(bar.start)}`}</Text>
          <Text>{bar.open ? `still under way at ${moment(bar.end)}` : `until ${moment(bar.end)}`}</Text>
          <Text>{seconds((bar.end - bar.start) / 1000)}</Text>
          {asideWords(row).map((words) => (
            <Text key={words} overflowWrap="anywhere">
              {words}
            </Text>
          ))}
        </Box>
      )}
    </Box>
  );
}

/** Writes a length in seconds, and in larger units where that is easier to read. */
function seconds(length: number): string {
  const exact = `${length < 10 ? Number(length.toFixed(2)) : Math.round(length)} s`;
  return length < 60 ? exact : `${exact} (${duration(length)})`;
}
