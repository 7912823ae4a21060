/** Buttons that do something to transactions: first each says what would happen. */

import { Button, HStack } from "@chakra-ui/react";
import { useState } from "react";

import type { ActionName } from "../api/client";
import { ActionDialog } from "./ActionDialog";
import { WORDS } from "./words";

interface Props {
  topology: string;
  /** Those that can be done now. */
  actions: readonly ActionName[];
  /** The transactions they are about; none: the topology. */
  txids?: number[];
  /** Of restate, instead of txids: what is behind corrections upstream. */
  follow?: boolean;
  /** Of restate, instead of txids: what is stale. */
  stale?: boolean;
  /** Written on the button instead of the name of the action. */
  label?: string;
  /** Called when a person closes the dialog of what was done. */
  onDone?: () => void;
}

/** A dialog stays open to say what was done, also when its action can be done no more. */
export function ActionButtons({ topology, actions, txids = [], follow = false, stale = false, label, onDone }: Props) {
  const [open, setOpen] = useState<ActionName | null>(null);
  const close = (done: boolean) => {
    setOpen(null);
    if (done) onDone?.();
  };
  return (
    <HStack gap={2} wrap="wrap">
      {actions.map((action) => (
        <Button key={action} onClick={() => setOpen(action)} size="xs" variant="outline">
          {label ?? WORDS[action].button}
        </Button>
      ))}
      {open !== null && <ActionDialog action={open} follow={follow} stale={stale} onClose={close} topology={topology} txids={txids} />}
    </HStack>
  );
}
