/** What a person has selected, and what can be done to all of it at once. */

import { Button, HStack, Text } from "@chakra-ui/react";

import { ActionButtons } from "../actions/ActionButtons";
import { counted } from "../parts/words";

export function Selection({ topology, txids, clear }: { topology: string; txids: readonly number[]; clear: () => void }) {
  if (txids.length === 0) return null;
  return (
    <HStack aria-label="Selected transactions" bg="bg.info" borderRadius="sm" gap={3} mb={2} p={2} role="group" wrap="wrap">
      <Text fontSize="sm">{`${counted(txids.length, "transaction")} selected: ${txids.join(", ")}`}</Text>
      <ActionButtons actions={["replay", "skip"]} onDone={clear} topology={topology} txids={[...txids]} />
      <Button onClick={clear} size="xs" variant="ghost">
        Clear the selection
      </Button>
    </HStack>
  );
}
