/** The selected transactions, and the actions on all of them at once. */

import { Button, HStack, Text } from "@chakra-ui/react";

import { ActionButtons } from "../actions/ActionButtons";
import { counted } from "../parts/words";

/** As many the server takes. */
const MOST = 100;

interface Props {
  topology: string;
  txids: readonly number[];
  /** Whether a transaction is open: only such can be replayed, only others restated. */
  isOpen: (txid: number) => boolean;
  clear: () => void;
}

export function Selection({ topology, txids, isOpen, clear }: Props) {
  if (txids.length === 0) return null;
  const tooMany = txids.length > MOST;
  const open = txids.filter(isOpen);
  const final = txids.filter((txid) => !isOpen(txid));
  return (
    <HStack aria-label="Selected transactions" bg="bg.info" borderRadius="sm" gap={3} mb={2} p={2} role="group" wrap="wrap">
      <Text fontSize="sm">{`${counted(txids.length, "transaction")} selected${tooMany ? `; select at most ${MOST}` : `: ${txids.join(", ")}`}`}</Text>
      {!tooMany && open.length > 0 && <ActionButtons actions={["replay", "skip"]} onDone={clear} topology={topology} txids={open} />}
      {!tooMany && final.length > 0 && <ActionButtons actions={["restate"]} onDone={clear} topology={topology} txids={final} />}
      <Button onClick={clear} size="xs" variant="ghost">
        Clear the selection
      </Button>
    </HStack>
  );
}
