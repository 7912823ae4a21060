/** Zoom by dragging: what a person drags over is the span that is shown next. */

import { Box } from "@chakra-ui/react";
import { useRef, useState, type MouseEvent, type PointerEvent } from "react";

import { dragged, type Span } from "./scale";

/** Pixels that a hand trembles while it presses a row. */
const TREMBLE = 6;

interface Drag {
  from: number;
  to: number;
}

interface Place {
  span: Span;
  width: number;
  now: number;
  /** Finds the element that the plots cover, for where they begin. */
  plot: () => HTMLElement | null;
  zoom: (shown: { range: number; until: number | null }) => void;
}

/** Gives the handlers of the box that holds the plots, and what is dragged over, to be drawn. */
export function useDrag({ span, width, now, plot, zoom }: Place) {
  const [drag, setDrag] = useState<Drag | null>(null);
  const pressed = useRef<{ from: number; moved: boolean } | null>(null);
  const x = (event: PointerEvent) => event.clientX - (plot()?.getBoundingClientRect().left ?? 0);
  const end = () => {
    pressed.current = null;
    setDrag(null);
  };
  const handlers = {
    onClickCapture: (event: MouseEvent) => {
      if (!pressed.current?.moved) return;
      // The row below the pointer is a link.
      event.preventDefault();
      event.stopPropagation();
      end();
    },
    onDragStart: (event: MouseEvent) => event.preventDefault(),
    onPointerCancel: end,
    onPointerDown: (event: PointerEvent) => {
      const from = x(event);
      pressed.current = event.button === 0 && from >= 0 && from <= width ? { from, moved: false } : null;
    },
    onPointerMove: (event: PointerEvent<HTMLElement>) => {
      if (!pressed.current) return;
      if (!pressed.current.moved && Math.abs(x(event) - pressed.current.from) < TREMBLE) return;
      if (!pressed.current.moved) event.currentTarget.setPointerCapture(event.pointerId);
      pressed.current.moved = true;
      setDrag({ from: pressed.current.from, to: x(event) });
    },
    onPointerUp: () => {
      if (drag) zoom(dragged(drag.from, drag.to, span, width, now));
      setDrag(null);
      // The click comes after this, if it comes at all.
      setTimeout(() => (pressed.current = null));
    },
  };
  return { drag, handlers };
}

/** What is dragged over. */
export function Dragged({ drag, left }: { drag: Drag | null; left: object }) {
  if (!drag) return null;
  return (
    <Box aria-hidden bottom={0} left={left} overflow="hidden" pointerEvents="none" position="absolute" right={0} top={0}>
      <Box
        bg="blue.muted"
        borderColor="blue.fg"
        borderXWidth="1px"
        height="100%"
        left={`${Math.min(drag.from, drag.to)}px`}
        opacity={0.5}
        position="absolute"
        width={`${Math.abs(drag.to - drag.from)}px`}
      />
    </Box>
  );
}
