/** One dialog for the buttons of a page: it stays open to say what was done, also when its button is there no more. */

import { useState, type ReactNode } from "react";

import type { AdvisedAction } from "../api/client";
import { ActionDialog } from "./ActionDialog";

export type Asked = AdvisedAction & { topology: string };

/** Gives what a button calls, and the dialog that it opens. */
export function useActing(): [act: (asked: Asked) => void, dialog: ReactNode] {
  const [asked, setAsked] = useState<Asked | null>(null);
  const dialog = asked && (
    <ActionDialog
      action={asked.action}
      changedRows={asked.changed_rows}
      names={asked.names}
      onClose={() => setAsked(null)}
      repair={asked.repair}
      restate={asked.restate}
      topology={asked.topology}
      txids={asked.txids}
    />
  );
  return [setAsked, dialog];
}
