/** A text in one line: whole, or shortened where nobody can read another value; then a pointer reads all of it. */

import { Text, type TextProps } from "@chakra-ui/react";
import { useLayoutEffect, useRef, useState } from "react";

import { shortened, textWidth } from "./whole";

/** @param room changes with the room that the text has: its box is measured anew then. */
export function Whole({ text, room, ...layout }: { text: string; room: number } & TextProps) {
  const box = useRef<HTMLParagraphElement>(null);
  const [shown, setShown] = useState(text);
  useLayoutEffect(() => {
    const style = getComputedStyle(box.current!);
    const wide = box.current!.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    setShown(shortened(text, (each) => textWidth(each, style.font) <= wide));
  }, [text, room]);
  return (
    <Text minW={0} overflow="hidden" ref={box} title={shown === text ? undefined : text} whiteSpace="nowrap" {...layout}>
      {shown}
    </Text>
  );
}
