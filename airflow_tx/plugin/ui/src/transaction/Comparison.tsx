/** The attempts of a transaction, each in a column: error, rows, code and tasks. */

import { Box, Button, Table, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Link } from "react-router-dom";

import { logName } from "../actions/AdviceLine";
import type { TransactionPage } from "../api/client";
import { Term } from "../parts/Term";
import { Facts, Section } from "./facts";
import { compare, type Compared } from "./compare";

/** Columns at first: more are shown when a person asks for them. */
const SHOWN = 3;

export function Comparison({ page }: { page: TransactionPage }) {
  const [all, setAll] = useState(false);
  const attempts = all ? page.comparison : page.comparison.slice(-SHOWN);
  const hidden = page.comparison.length - attempts.length;
  return (
    <Section title="Attempts">
      {hidden > 0 && (
        <Button mb={1} onClick={() => setAll(true)} size="xs" variant="outline">{`Show all ${page.comparison.length} attempts`}</Button>
      )}
      <Box aria-label="Attempts" overflowX="auto" role="region" tabIndex={0}>
        <Table.Root size="sm" width="auto">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>
                <Term name="attempt">Attempt</Term>
              </Table.ColumnHeader>
              {attempts.map((each) => (
                <Table.ColumnHeader key={each.attempt} scope="col" whiteSpace="nowrap">{`${page.txid}.${each.attempt}`}</Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {compare(attempts).map((line, index) => (
              <Table.Row key={`${index} ${line.name}`} verticalAlign="top">
                <Table.ColumnHeader fontWeight="medium" scope="row">
                  {line.name}
                </Table.ColumnHeader>
                {line.cells.map((cell, column) => (
                  <Cell cell={cell} key={attempts[column]!.attempt} />
                ))}
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
      <Facts facts={[["Failures", page.failures || null]]} />
    </Section>
  );
}

/** What has changed has a background and a sign: colour alone tells nothing. */
function Cell({ cell }: { cell: Compared }) {
  return (
    <Table.Cell bg={cell.changed ? "bg.warning" : undefined} data-changed={cell.changed || undefined} fontVariantNumeric="tabular-nums">
      <Text maxW="60ch" overflowWrap="anywhere" whiteSpace="pre-wrap">
        {cell.changed && (
          <Text aria-label="changed:" as="span" fontWeight="bold" role="img">
            {"≠ "}
          </Text>
        )}
        {cell.text}
        {cell.log && (
          <>
            {" "}
            <Link aria-label={`Log of ${logName(cell.log)}, try ${cell.log.try_number}`} style={{ textDecoration: "underline" }} to={`/${cell.log.path}`}>
              log
            </Link>
          </>
        )}
      </Text>
    </Table.Cell>
  );
}
