/** From when until when: typed by a person, in the time zone of the page. */

import { Button, HStack, Input, Text } from "@chakra-ui/react";
import { useState, type FormEvent } from "react";
import { useNavigate } from "react-router-dom";

import type { Address } from "../parts/address";
import { timeZone } from "../parts/words";
import { fieldMoment, fieldText, zoneName } from "./fields";
import { shownFrom } from "./scale";

interface Props {
  start: number;
  /** Null: now. */
  until: number | null;
  now: number;
  write: (changes: Partial<Address>) => string;
}

/** A person who types is not disturbed: the fields follow the page until then. */
export function Times({ start, until, now, write }: Props) {
  const navigate = useNavigate();
  const zone = timeZone();
  const shown = { from: fieldText(start, zone), until: until === null ? "" : fieldText(until, zone) };
  const [typed, setTyped] = useState<typeof shown | null>(null);
  const { from, until: end } = typed ?? shown;
  const [first, last] = [fieldMoment(from, zone), fieldMoment(end, zone)];
  const wrong = wrongTimes(first, last ?? now);
  const show = (event: FormEvent) => {
    event.preventDefault();
    if (first === null || wrong !== null) return;
    const time = shownFrom({ start: first, end: last ?? now }, now);
    setTyped(null);
    void navigate(write(last === null ? { ...time, until: null } : time));
  };
  const field = (label: string, value: string, name: "from" | "until") => (
    <HStack as="label" fontSize="sm" gap={1}>
      <span>{label}</span>
      <Input
        aria-describedby="tx-times-wrong"
        aria-invalid={typed !== null && wrong !== null}
        aria-label={`${label}, ${zoneName(zone)}`}
        onChange={(event) => setTyped({ from, until: end, [name]: event.target.value })}
        size="xs"
        step={1}
        type="datetime-local"
        value={value}
        width="215px"
      />
    </HStack>
  );
  return (
    <form onSubmit={show}>
      <HStack gap={2} mt={2} wrap="wrap">
        {field("From", from, "from")}
        {field("Until", end, "until")}
        <Button disabled={typed === null || wrong !== null} size="xs" type="submit" variant="outline">
          Show this time
        </Button>
        <Text color="fg.muted" fontSize="xs">{`${zoneName(zone)}; an empty end means now`}</Text>
        <Text aria-live="polite" color="fg.error" fontSize="xs" id="tx-times-wrong">
          {typed !== null && wrong}
        </Text>
      </HStack>
    </form>
  );
}

/** Says what is wrong with two moments; null: nothing. */
function wrongTimes(first: number | null, last: number): string | null {
  if (first === null) return "Enter the day and the time from which to show rows.";
  return first >= last ? "The end must be after the start." : null;
}
