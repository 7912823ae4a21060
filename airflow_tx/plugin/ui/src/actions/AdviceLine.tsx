/** What helps, where the sentence is that says what is wrong: buttons, the log, the command, and the cause. */

import { Button, HStack, Link as Styled, Stack, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import type { AdvisedAction, Advice } from "../api/client";
import { CopyCommand } from "../parts/Copy";
import { useAddress } from "../parts/address";
import type { Asked } from "./acting";
import { RefusedRows } from "./RefusedRows";
import { aboutWords, buttonOf } from "./words";

interface Props {
  advice: Advice;
  topology: string;
  onAct: (asked: Asked) => void;
  /** Whether buttons of several topologies or transactions are on the page, so that each names its own. */
  named?: boolean;
  /** Whether the log may show rows that were refused. */
  rows?: boolean;
  /** Whether it is one line, of the buttons alone. */
  brief?: boolean;
}

export function AdviceLine({ advice, topology, onAct, named = false, rows = false, brief = false }: Props) {
  const { log } = advice;
  const { cause, remedy } = brief ? NO_WORDS : advice;
  const actions = advisedActions(advice);
  const command = advice.steps.find((each) => each.command)?.command;
  if (!remedy && !cause && !command && !log && actions.length === 0) return null;
  const size = brief ? "2xs" : "xs";
  return (
    <Stack gap={1} mt={brief ? 0 : 1}>
      {cause && (
        <Text overflowWrap="anywhere">
          <Sentence rest={cause.rest} topology={topology} txid={cause.txid} />
        </Text>
      )}
      {remedy && <Text overflowWrap="anywhere">{remedy}</Text>}
      <HStack gap={2} wrap={brief ? { base: "wrap", lg: "nowrap" } : "wrap"}>
        {actions.map((each) => (
          <Button
            aria-label={named ? `${buttonOf(each.action, each.repair)} ${aboutWords(topology, each.txids, each.names)}` : undefined}
            key={[each.action, each.repair, ...each.txids, ...each.names].join(" ")}
            onClick={() => onAct({ ...each, topology })}
            size={size}
            variant="outline"
          >
            {buttonOf(each.action, each.repair)}
          </Button>
        ))}
        {log && (
          <Button asChild maxW="full" minW={0} size={size} variant="outline">
            <Link aria-label={`Open the log of ${logName(log)}`} title={`Open the log of ${logName(log)}`} to={`/${log.path}`}>
              <Text as="span" truncate>{brief ? "Log" : `Open the log of ${logName(log)}`}</Text>
            </Link>
          </Button>
        )}
        {log && rows && <RefusedRows key={log.path} log={log} />}
        {command && <CopyCommand brief={brief} command={command} />}
      </HStack>
    </Stack>
  );
}

/** Gives the actions of the steps, in their order. */
export function advisedActions(advice: Advice): AdvisedAction[] {
  return advice.steps.flatMap(({ action }) => (action ? [action] : []));
}
const NO_WORDS = { cause: null, remedy: null };

export function logName({ task_id, map_index }: { task_id: string; map_index: number }): string {
  return map_index >= 0 ? `${task_id}[${map_index}]` : task_id;
}

/** How a transaction is, with a link to it. */
export function Sentence({ rest, topology, txid }: { rest: string; topology: string; txid: number }) {
  const [, write] = useAddress();
  return (
    <>
      <Styled asChild color="inherit" textDecoration="underline">
        <Link to={write({ topology, txid, state: null, text: null, offset: null })}>{`Transaction ${txid}`}</Link>
      </Styled>
      {rest}
    </>
  );
}
