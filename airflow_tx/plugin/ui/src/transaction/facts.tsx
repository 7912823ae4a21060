/** Small parts of the page of a transaction: facts, tables, JSON. */

import { Box, Heading, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

export type Fact = [name: ReactNode, value: ReactNode];

/** Shows names and values; those without a value are left out. */
export function Facts({ facts }: { facts: Fact[] }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return (
    <Box as="dl" columnGap={6} display="grid" mt={1} fontSize="sm" gridTemplateColumns={{ base: "1fr", sm: "max-content minmax(0, 1fr)" }} rowGap={{ base: 0, sm: 1 }}>
      {known.map(([name, value], index) => (
        <Box display="contents" key={index}>
          <Box as="dt" color="fg.muted">
            {name}
          </Box>
          <Box as="dd" mb={{ base: 2, sm: 0 }} overflowWrap="anywhere">
            {value}
          </Box>
        </Box>
      ))}
    </Box>
  );
}

export function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <Box as="section" minW={0}>
      <Heading as="h2" mb={1} size="sm">
        {title}
      </Heading>
      {children}
    </Box>
  );
}

/** Shows rows of values below headers; on a narrow page it scrolls by itself. */
export function Rows({ label, headers, rows }: { label: string; headers: ReactNode[]; rows: ReactNode[][] }) {
  return (
    <Box aria-label={label} overflowX="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" width="auto">
        <Table.Header>
          <Table.Row>
            {headers.map((header, index) => (
              <Table.ColumnHeader key={index} whiteSpace="nowrap">
                {header}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map((row, index) => (
            <Table.Row key={index} verticalAlign="top">
              {row.map((value, column) => (
                <Table.Cell key={column} fontVariantNumeric="tabular-nums">
                  {value}
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
  );
}

/** Shows JSON below its name; long JSON scrolls by itself. */
export function Json({ value, name }: { value: unknown; name: string }) {
  return (
    <Box mt={2}>
      <Text color="fg.muted">{name}</Text>
      <Box aria-label={name} as="pre" bg="bg.muted" fontSize="xs" maxH="300px" overflow="auto" p={2} role="region" tabIndex={0}>
        {JSON.stringify(value, null, 2)}
      </Box>
    </Box>
  );
}

export function Code({ children }: { children: ReactNode }) {
  return (
    <Text as="span" fontFamily="mono" fontSize="xs" overflowWrap="anywhere">
      {children}
    </Text>
  );
}
