/** A button that does something to transactions: first it says what would happen. */

import { Button } from "@chakra-ui/react";
import { useState } from "react";

import type { ActionName } from "../api/client";
import { ActionDialog } from "./ActionDialog";
import { WORDS } from "./words";

interface Props {
  topology: string;
  action: ActionName;
  /** The transactions it is about; none: the topology. */
  txids?: number[];
}

export function ActionButton({ topology, action, txids = [] }: Props) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <Button onClick={() => setOpen(true)} size="xs" variant="outline">
        {WORDS[action].button}
      </Button>
      {open && <ActionDialog action={action} onClose={() => setOpen(false)} topology={topology} txids={txids} />}
    </>
  );
}
