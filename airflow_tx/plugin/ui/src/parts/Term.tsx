/** Words of the protocol that a person may not know: each has a tip, and a link to the page that explains all of them. */

import { Box, Heading, Link as Styled, Text, Tooltip } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";

import { useAddress } from "./address";
import { TERMS, type TermName } from "./terms";

/** What says more about a link or a button, which is `children`: it comes with the pointer and with the keyboard's focus. */
export function Tip({ text, children }: { text: ReactNode; children: ReactNode }) {
  return (
    <Tooltip.Root closeDelay={100} openDelay={200}>
      <Tooltip.Trigger asChild>{children}</Tooltip.Trigger>
      {/* A tip that is about to close must not catch a click on what lies below it. */}
      <Tooltip.Positioner pointerEvents="none">
        <Tooltip.Content fontSize="sm" maxW="320px" overflowWrap="anywhere" p={2} pointerEvents="none">
          {text}
        </Tooltip.Content>
      </Tooltip.Positioner>
    </Tooltip.Root>
  );
}

/** A word with its tip. */
export function Term({ name, children }: { name: TermName; children: ReactNode }) {
  const [, write] = useAddress();
  return (
    <Tip text={TERMS[name].text}>
      <Styled asChild color="inherit" textDecoration="underline dotted" textUnderlineOffset="3px">
        <Link to={write({ word: name })}>{children}</Link>
      </Styled>
    </Tip>
  );
}

/** All words, and where the documentation says more. */
export function Words({ word }: { word: string }) {
  const [, write] = useAddress();
  return (
    <Box maxW="72ch" p={{ base: 3, md: 4 }}>
      <Styled asChild color="fg.info" fontSize="sm" mb={2}>
        <Link to={write({ word: null })}>← Back</Link>
      </Styled>
      <Heading as="h1" mb={3} size="lg">
        Terms of the Transactions page
      </Heading>
      <dl>
        {Object.entries(TERMS).map(([name, { title, text, docs }]) => (
          <Box bg={name === word ? "bg.muted" : undefined} borderRadius="sm" key={name} mb={2} p={2} ref={name === word ? intoView : undefined}>
            <Text as="dt" fontWeight="semibold">
              {title}
            </Text>
            <dd>
              <Text>{text}</Text>
              <Text color="fg.muted" fontSize="sm">{`For details, see ${docs} in the documentation.`}</Text>
            </dd>
          </Box>
        ))}
      </dl>
    </Box>
  );
}

function intoView(box: HTMLElement | null): void {
  box?.scrollIntoView({ block: "center" });
}
