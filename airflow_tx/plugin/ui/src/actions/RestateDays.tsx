/** Restates the transactions of days: first a person names them, then sees what would happen. */

import { Button, Dialog, Field, HStack, Input, Portal, Text } from "@chakra-ui/react";
import { useState, type FormEvent } from "react";

import { ActionDialog } from "./ActionDialog";
import type { Days } from "./words";

export function RestateDays({ topology }: { topology: string }) {
  const [asking, setAsking] = useState(false);
  const [days, setDays] = useState<Days | null>(null);
  const preview = (named: Days) => {
    setAsking(false);
    setDays(named);
  };
  return (
    <>
      <Button onClick={() => setAsking(true)} size="xs" variant="outline">
        Restate days
      </Button>
      {asking && <DaysDialog onClose={() => setAsking(false)} onNamed={preview} topology={topology} />}
      {days && <ActionDialog action="restate" days={days} onClose={() => setDays(null)} topology={topology} txids={[]} />}
    </>
  );
}

function DaysDialog({ topology, onClose, onNamed }: { topology: string; onClose: () => void; onNamed: (days: Days) => void }) {
  const [first, setFirst] = useState("");
  const [last, setLast] = useState("");
  const backwards = first !== "" && last !== "" && last < first;
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (first !== "" && last !== "" && !backwards) onNamed({ first, last });
  };
  return (
    <Dialog.Root onOpenChange={({ open }) => !open && onClose()} open>
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content mx={3}>
            <form onSubmit={send}>
              <Dialog.Header>
                <Dialog.Title>{`Restate days: ${topology}`}</Dialog.Title>
              </Dialog.Header>
              <Dialog.Body>
                <Text mb={3}>Restate the transactions whose data intervals begin on these days, in the time zone of the schedule. The next page shows what would happen.</Text>
                <HStack align="start" gap={3} wrap="wrap">
                  <Day label="From" onChange={setFirst} value={first} />
                  <Day invalid={backwards} label="To" onChange={setLast} value={last} />
                </HStack>
              </Dialog.Body>
              <Dialog.Footer>
                <Button onClick={onClose} size="sm" variant="outline">
                  Cancel
                </Button>
                <Button colorPalette="brand" disabled={first === "" || last === "" || backwards} size="sm" type="submit">
                  Preview
                </Button>
              </Dialog.Footer>
            </form>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}

function Day({ label, value, invalid = false, onChange }: { label: string; value: string; invalid?: boolean; onChange: (value: string) => void }) {
  return (
    <Field.Root invalid={invalid} width="auto">
      <Field.Label>{label}</Field.Label>
      <Input onChange={(event) => onChange(event.target.value)} size="sm" type="date" value={value} />
      <Field.ErrorText color="fg">The last day cannot be before the first day.</Field.ErrorText>
    </Field.Root>
  );
}
