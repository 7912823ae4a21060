/** Which rows are shown: by text, run, status, and what was done over or took long. */

import { Box, Button, HStack, Input, Text } from "@chakra-ui/react";
import { useEffect, useState } from "react";
import { useNavigate } from "react-router-dom";

import type { Timeline } from "../api/client";
import type { Address } from "../parts/address";
import { Phase } from "../parts/phase";
import { counted, duration } from "../parts/words";
import { EVERY_ROW, isFiltered, MARKS, STATUSES, toggled, type RowFilter } from "./filter";

const TYPING = 300;

interface Props {
  filter: RowFilter;
  write: (changes: Partial<Address>) => string;
  /** What the server says of the rows that are shown. */
  answer: Timeline | undefined;
}

export function FilterBar({ filter, write, answer }: Props) {
  const navigate = useNavigate();
  const filtered = isFiltered(filter);
  const [isOpen, setOpen] = useState(filtered);
  const go = (changes: Partial<RowFilter>) => void navigate(write(changes), { replace: true });
  return (
    <Box mb={2}>
      <HStack gap={3} wrap="wrap">
        <Button aria-expanded={isOpen} onClick={() => setOpen(!isOpen)} size="xs" variant={filtered ? "subtle" : "outline"}>
          Filter rows
        </Button>
        {filtered && (
          <Button onClick={() => go(EVERY_ROW)} size="xs" variant="outline">
            Show all rows
          </Button>
        )}
        <Text aria-live="polite" color="fg.muted" fontSize="sm">
          {filtered && answer !== undefined ? outcome(answer) : ""}
        </Text>
      </HStack>
      {isOpen && (
        <HStack gap={2} mt={2} wrap="wrap">
          <Field label="Run, batch or error" name="Filter rows by text" onChange={(find) => go({ find })} text={filter.find ?? ""} />
          <Field label="Run id" name="Filter rows by run id" onChange={(run) => go({ run })} text={filter.run ?? ""} />
          <HStack aria-label="Filter rows by status" gap={1} role="group" wrap="wrap">
            {STATUSES.map((status) => (
              <Toggle isOn={filter.status?.includes(status) ?? false} key={status} onClick={() => go({ status: toggled(filter.status, status) })}>
                <Phase row={status === "BLOCKED" ? { phase: "FAILED", blocked: "" } : { phase: status, blocked: null }} />
              </Toggle>
            ))}
          </HStack>
          <HStack aria-label="Filter rows by property" gap={1} role="group" wrap="wrap">
            {MARKS.map((mark) => (
              <Toggle isOn={filter.only?.includes(mark) ?? false} key={mark} onClick={() => go({ only: toggled(filter.only, mark) })}>
                {mark}
              </Toggle>
            ))}
          </HStack>
        </HStack>
      )}
    </Box>
  );
}

function Toggle({ isOn, onClick, children }: { isOn: boolean; onClick: () => void; children: React.ReactNode }) {
  return (
    <Button aria-pressed={isOn} onClick={onClick} size="xs" variant={isOn ? "subtle" : "outline"}>
      {children}
    </Button>
  );
}

/** A text that is asked for once a person has stopped typing. */
function Field({ label, name, text, onChange }: { label: string; name: string; text: string; onChange: (text: string | null) => void }) {
  const [typed, setTyped] = useState(text);
  // The address may change it, too.
  useEffect(() => setTyped((before) => (before.trim() === text ? before : text)), [text]);
  useEffect(() => {
    if (typed.trim() === text) return undefined;
    const timer = setTimeout(() => onChange(typed.trim() || null), TYPING);
    return () => clearTimeout(timer);
  }, [typed, text, onChange]);
  return (
    <Input
      aria-label={name}
      maxLength={200}
      onChange={(event) => setTyped(event.target.value)}
      placeholder={label}
      size="xs"
      type="search"
      value={typed}
      width="200px"
    />
  );
}

/** Says what a filter let through, of how many transactions. */
export function outcome(answer: Pick<Timeline, "total" | "looked_to" | "slow_beyond">): string {
  const found = `${counted(answer.total, "transaction matches", "transactions match")} the filter in this time`;
  const looked = answer.looked_to == null ? "" : `, down to transaction ${answer.looked_to}; earlier transactions were not searched`;
  const slow = answer.slow_beyond == null ? "" : ` A slow transaction takes longer than ${duration(answer.slow_beyond)}; 95 of 100 committed transactions take less.`;
  return `${found}${looked}.${slow}`;
}
