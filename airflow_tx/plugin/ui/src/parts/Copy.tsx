/** A button that copies a text, so that the text itself needs no room. */

import { Button, Code, HStack } from "@chakra-ui/react";
import { useState } from "react";

/** Copies a text; false: the browser does not let the page do that, for example on a page without TLS. */
export async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Copies a command; where that cannot be done, it shows the command, to be copied by hand. */
export function CopyCommand({ command, brief = false }: { command: string; brief?: boolean }) {
  const [done, setDone] = useState<boolean | null>(null);
  return (
    <HStack gap={2} wrap="wrap">
      <Button aria-label={`Copy the command ${command}`} onClick={() => void copied(command).then(setDone)} size={brief ? "2xs" : "xs"} title={command} variant="ghost">
        {done ? "Copied" : brief ? "Copy" : "Copy the command"}
      </Button>
      {done === false && <Code overflowWrap="anywhere">{command}</Code>}
    </HStack>
  );
}
