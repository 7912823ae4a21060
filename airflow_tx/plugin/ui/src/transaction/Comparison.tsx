/** The attempts of a transaction, a row each: how it ended, its batch, code and error, and the tasks to look at. */

import { Box, Button, Table, Text } from "@chakra-ui/react";
import { useState, type ReactNode } from "react";
import { Link } from "react-router-dom";

import { logName } from "../actions/AdviceLine";
import type { TransactionPage } from "../api/client";
import { Term } from "../parts/Term";
import { Facts, Section } from "./facts";
import { compare, ERRORS, notable, type Compared, type ComparedTask } from "./compare";

/** Rows at first: more are shown when a person asks for them. */
const SHOWN = 3;

export function Comparison({ page }: { page: TransactionPage }) {
  const [all, setAll] = useState(false);
  const attempts = all ? page.comparison : page.comparison.slice(-SHOWN);
  const columns = compare(attempts);
  const tasks = notable(attempts);
  const hasTasks = tasks.some((each) => each.length > 0);
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
              {columns.map((each) => (
                <Table.ColumnHeader key={each.name} scope="col" whiteSpace="nowrap">
                  {each.name}
                </Table.ColumnHeader>
              ))}
              {hasTasks && <Table.ColumnHeader scope="col">Tasks</Table.ColumnHeader>}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {attempts.map((each, index) => (
              <Table.Row key={each.attempt} verticalAlign="top">
                <Table.ColumnHeader fontWeight="medium" scope="row">{`${page.txid}.${each.attempt}`}</Table.ColumnHeader>
                {columns.map((column) => (
                  <Cell key={column.name} long={column.name === ERRORS}>
                    <Marked cell={column.cells[index]!} />
                  </Cell>
                ))}
                {hasTasks && (
                  <Cell>
                    {tasks[index]!.map((task) => (
                      <Task key={task.name} task={task} />
                    ))}
                  </Cell>
                )}
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
      <Facts facts={[["Failures", page.failures || null]]} />
    </Section>
  );
}

/** @param long whether it is a text of several lines. */
function Cell({ children, long = false }: { children: ReactNode; long?: boolean }) {
  const layout = long ? { maxW: "60ch", minW: "28ch", overflowWrap: "anywhere" as const, whiteSpace: "pre-wrap" as const } : { whiteSpace: "nowrap" as const };
  return (
    <Table.Cell fontVariantNumeric="tabular-nums">
      <Box {...layout}>{children}</Box>
    </Table.Cell>
  );
}

/** What has changed has a background and a sign: colour alone tells nothing. */
function Marked({ cell: { text, changed }, children }: { cell: Compared; children?: ReactNode }) {
  return (
    <Box as="span" bg={changed ? "bg.warning" : undefined} data-changed={changed || undefined}>
      {changed && (
        <Text aria-label="changed:" as="span" fontWeight="bold" role="img">
          {"≠ "}
        </Text>
      )}
      {text}
      {children}
    </Box>
  );
}

function Task({ task: { name, log, ...cell } }: { task: ComparedTask }) {
  return (
    <div>
      {`${name}: `}
      <Marked cell={cell}>
        {log && (
          <>
            {" "}
            <Link aria-label={`Log of ${logName(log)}, try ${log.try_number}`} style={{ textDecoration: "underline" }} to={`/${log.path}`}>
              log
            </Link>
          </>
        )}
      </Marked>
    </div>
  );
}
