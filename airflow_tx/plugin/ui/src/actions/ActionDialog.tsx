/** What an action would do, the reason for it, and its outcome. */

import { Button, Checkbox, Dialog, Field, HStack, List, Portal, Stack, Text, Textarea } from "@chakra-ui/react";
import { keepPreviousData, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { ActionName, EffectLine, PreviewBody } from "../api/client";
import { Refused, waits } from "../parts/Busy";
import { Loading } from "../parts/Loading";
import { act as doIt, preview as previewOf } from "./several";
import { buttonOf, titleOf, WORDS, type Days } from "./words";

interface Props {
  topology: string;
  action: ActionName;
  txids: number[];
  /** Of checks or states. */
  names?: string[];
  /** Of repair: its kind. */
  repair?: string;
  /** Of restate, instead of txids. */
  days?: Days;
  /** Of restate, instead of txids: what is behind corrections upstream. */
  follow?: boolean;
  /** Of restate, instead of txids: what is stale. */
  stale?: boolean;
  /** Whether the box for the current rows is ticked at first. */
  changedRows?: boolean;
  /** Whether the box for what the journal does not have is ticked at first. */
  restate?: boolean;
  /** `done`: whether something was done. */
  onClose: (done: boolean) => void;
}

export function ActionDialog({
  topology,
  action,
  txids,
  names = [],
  repair = "",
  days,
  follow = false,
  stale = false,
  changedRows = false,
  restate = false,
  onClose,
}: Props) {
  const queries = useQueryClient();
  const [why, setWhy] = useState("");
  const [options, setOptions] = useState({ force: false, changed_rows: changedRows, restate });
  const body: PreviewBody = { txids, names, repair, follow, stale, ...days, ...options };
  const preview = useQuery({
    gcTime: 0,
    // A box that is ticked asks again: the dialog stays until the answer is there.
    placeholderData: keepPreviousData,
    queryFn: () => previewOf(topology, action, body),
    queryKey: ["preview", topology, action, body],
    retry: false,
    staleTime: Infinity,
  });
  const act = useMutation({
    mutationFn: (version: string) => doIt(topology, action, { ...body, version, why: why.trim() }),
    onSettled: () => queries.invalidateQueries({ predicate: (query) => query.queryKey[0] !== "preview" }),
  });
  const answer = preview.data;
  const asking = preview.isFetching;
  const ready = answer !== undefined && !asking && preview.error === null && answer.effects.length > 0 && (!answer.needs_reason || why.trim() !== "");
  const close = () => onClose(act.data !== undefined);
  const error = act.error ?? preview.error;
  const isBusy = waits(error) !== null;
  const again = () => {
    // Nothing was done, and the version of the preview says whether that still holds.
    if (isBusy && act.error && answer) return act.mutate(answer.version);
    act.reset();
    void preview.refetch();
  };
  return (
    <Dialog.Root onOpenChange={({ open }) => !open && close()} open scrollBehavior="inside">
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content mx={3}>
            <Dialog.Header>
              <Dialog.Title>{titleOf(action, topology, txids, days, names, repair)}</Dialog.Title>
            </Dialog.Header>
            <Dialog.Body aria-label="Preview" role="region" tabIndex={0}>
              <Stack gap={4}>
                {act.data ? <Effects lines={act.data.done} title="Done" /> : null}
                {!act.data && preview.isPending && preview.fetchStatus === "fetching" && <Loading query={preview} />}
                {!act.data && answer && (
                  <>
                    <Text opacity={asking ? 0.6 : 1}>{answer.sentence}</Text>
                    <Effects lines={answer.effects} title="What will happen" />
                    <Effects lines={answer.refused.filter(({ txid }) => !answer.is_refusal || txid !== null)} title="Refused" />
                    {action === "replay" && <ReplayOptions onChange={setOptions} value={options} />}
                    {action === "restate" && !follow && !stale && <RowsOption onChange={setOptions} value={options} />}
                    {repair === "roll-forward" && <RestateOption onChange={setOptions} value={options} />}
                    {answer.needs_reason && answer.effects.length > 0 && (
                      <Field.Root required>
                        <Field.Label>
                          Reason <Field.RequiredIndicator />
                        </Field.Label>
                        <Textarea maxLength={2000} onChange={(event) => setWhy(event.target.value)} value={why} />
                        <Field.HelperText>The ledger keeps the reason and your name.</Field.HelperText>
                      </Field.Root>
                    )}
                  </>
                )}
                <Refused again={again} asking={act.isPending || asking} error={error} grave />
              </Stack>
            </Dialog.Body>
            <Dialog.Footer>
              <Button onClick={close} size="sm" variant="outline">
                {act.data ? "Close" : "Cancel"}
              </Button>
              {!act.data && error !== null && !isBusy && (
                <Button onClick={again} size="sm" variant="outline">
                  Preview again
                </Button>
              )}
              {!act.data && !act.error && (
                <Button
                  colorPalette={WORDS[action].grave ? "red" : "brand"}
                  disabled={!ready}
                  loading={act.isPending || asking}
                  loadingText={buttonOf(action, repair)}
                  onClick={() => answer && act.mutate(answer.version)}
                  size="sm"
                >
                  {buttonOf(action, repair)}
                </Button>
              )}
            </Dialog.Footer>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}

function Effects({ lines, title }: { lines: EffectLine[]; title: string }) {
  if (lines.length === 0) return null;
  return (
    <Stack gap={1}>
      <Text fontWeight="semibold">{title}</Text>
      <List.Root ps={4}>
        {lines.map((line, index) => (
          <List.Item key={index} overflowWrap="anywhere">
            {effect(line)}
          </List.Item>
        ))}
      </List.Root>
    </Stack>
  );
}

/** Writes an effect: the transaction, its run, what happens. */
export function effect({ txid, run_id, what }: EffectLine): string {
  const of = [txid === null ? null : String(txid), run_id === null ? null : `(run ${run_id})`].filter((each) => each !== null).join(" ");
  return of === "" ? what : `${of}: ${what}`;
}

interface Options {
  force: boolean;
  changed_rows: boolean;
  restate: boolean;
}

function ReplayOptions({ value, onChange }: { value: Options; onChange: (value: Options) => void }) {
  return (
    <HStack gap={4} wrap="wrap">
      <Option label="also replay transactions whose run is queued or running" name="force" onChange={onChange} value={value} />
      <RowsOption onChange={onChange} value={value} />
    </HStack>
  );
}

function RowsOption({ value, onChange }: { value: Options; onChange: (value: Options) => void }) {
  return <Option label="read the current rows of the source" name="changed_rows" onChange={onChange} value={value} />;
}

function RestateOption({ value, onChange }: { value: Options; onChange: (value: Options) => void }) {
  return <Option label="process transactions again if the journal does not have their rows" name="restate" onChange={onChange} value={value} />;
}

function Option({ label, name, value, onChange }: { label: string; name: keyof Options; value: Options; onChange: (value: Options) => void }) {
  return (
    <Checkbox.Root checked={value[name]} onCheckedChange={({ checked }) => onChange({ ...value, [name]: checked === true })} size="sm">
      <Checkbox.HiddenInput />
      <Checkbox.Control />
      <Checkbox.Label>{label}</Checkbox.Label>
    </Checkbox.Root>
  );
}
