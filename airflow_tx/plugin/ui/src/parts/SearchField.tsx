/** A field for the text of a search, with the button that sends it. */

import { Button, Flex, Input, type InputProps } from "@chakra-ui/react";

interface Props extends Pick<InputProps, "aria-label" | "maxW" | "placeholder"> {
  typed: string;
  setTyped: (typed: string) => void;
  asking: boolean;
}

/** @param asking whether an answer is under way. It stands in a form. */
export function SearchField({ typed, setTyped, asking, ...field }: Props) {
  return (
    <Flex align="center" gap={2} width="100%">
      <Input {...field} maxLength={200} onChange={(event) => setTyped(event.target.value)} size="sm" type="search" value={typed} />
      <Button disabled={typed.trim() === ""} loading={asking} loadingText="Find" size="sm" type="submit" variant="outline">
        Find
      </Button>
    </Flex>
  );
}
