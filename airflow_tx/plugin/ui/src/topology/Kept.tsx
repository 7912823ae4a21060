/** What the ledger keeps of a topology besides its transactions. */

import { Link as Styled, Stack } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import type { TopologyPage } from "../api/client";
import { useAddress } from "../parts/address";
import { moment } from "../parts/words";
import { Rows, Section } from "../transaction/facts";

/** Stands where a viewer may not read the audit log of the DAG. */
const HIDDEN = "(hidden)";

export function Kept({ page }: { page: TopologyPage }) {
  const [, write] = useAddress();
  return (
    <Stack gap={4} mt={5}>
      {page.states.length > 0 && (
        <Section title="States">
          <Rows headers={["State", "Last txid"]} label="States" rows={page.states.map((each) => [each.name, each.last_txid])} />
        </Section>
      )}
      {page.waiting_runs.length > 0 && (
        <Section title="Runs that wait for a run slot">
          <Rows
            headers={["Run", "Since", "Waits for"]}
            label="Runs that wait for a run slot"
            rows={page.waiting_runs.map((each) => [each.run_id, moment(each.since), each.waiting_for])}
          />
        </Section>
      )}
      {page.skipped.length > 0 && (
        <Section title="Skipped">
          <Rows
            headers={["txid", "Run", "Who", "When", "Why"]}
            label="Skipped"
            rows={page.skipped.map((each) => [
              <Styled asChild color="fg.info" key="txid">
                <Link to={write({ topology: page.topology, txid: each.txid })}>{each.txid}</Link>
              </Styled>,
              each.run_id,
              each.skip.who ?? HIDDEN,
              moment(each.skip.when),
              each.skip.why ?? HIDDEN,
            ])}
          />
        </Section>
      )}
      {page.losses.length > 0 && (
        <Section title="Accepted losses">
          <Rows
            headers={["Rows", "Who", "When", "Why"]}
            label="Accepted losses"
            rows={page.losses.map((each) => [each.description, each.who ?? HIDDEN, moment(each.when), each.why ?? HIDDEN])}
          />
        </Section>
      )}
      {page.repairs.length > 0 && (
        <Section title="Repairs">
          <Rows
            headers={["What", "Done", "Who", "When", "Why"]}
            label="Repairs"
            rows={page.repairs.map((each) => [each.what, each.done, each.who ?? HIDDEN, moment(each.when), each.why ?? HIDDEN])}
          />
        </Section>
      )}
    </Stack>
  );
}
