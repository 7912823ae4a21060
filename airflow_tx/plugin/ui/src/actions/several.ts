/** An action on several transactions; one that the server does to one transaction at a time is asked for once for each. */

import { api, Refusal, type ActionName, type EffectLine, type PreviewAnswer, type PreviewBody } from "../api/client";

type Api = Pick<typeof api, "preview" | "act">;

const ONE_AT_A_TIME: readonly ActionName[] = ["skip", "readmit"];

function isEach(action: ActionName, body: PreviewBody): boolean {
  return ONE_AT_A_TIME.includes(action) && (body.txids ?? []).length > 1;
}

/** Says what would happen to all of them, in the order of their txids. */
export async function preview(topology: string, action: ActionName, body: PreviewBody, server: Api = api): Promise<PreviewAnswer> {
  if (!isEach(action, body)) return server.preview(topology, action, body);
  const versions: Record<number, string> = {};
  const all: PreviewAnswer = { version: "", sentence: "", effects: [], refused: [], needs_reason: false, is_refusal: false };
  const sentences: string[] = [];
  for (const txid of inOrder(body)) {
    const answer = await server.preview(topology, action, { ...body, txids: [txid] });
    all.effects.push(...answer.effects);
    all.refused.push(...answer.refused);
    all.needs_reason ||= answer.needs_reason;
    if (answer.effects.length === 0) continue;
    versions[txid] = answer.version;
    sentences.push(answer.sentence);
  }
  return { ...all, sentence: sentences.join(" "), version: JSON.stringify(versions) };
}

/** Does what was previewed, in the order of the txids. It stops at the first one that is refused, and says so. */
export async function act(
  topology: string,
  action: ActionName,
  body: PreviewBody & { version: string; why: string },
  server: Api = api,
): Promise<{ done: EffectLine[] }> {
  if (!isEach(action, body)) return server.act(topology, action, body);
  const versions = JSON.parse(body.version) as Record<number, string>;
  const done: EffectLine[] = [];
  for (const txid of inOrder(body)) {
    const version = versions[txid];
    if (version === undefined) continue;
    try {
      done.push(...(await server.act(topology, action, { ...body, txids: [txid], version })).done);
    } catch (error) {
      if (done.length === 0) throw error;
      done.push({ txid, run_id: null, what: `${error instanceof Refusal ? error.message : "there was no answer."} Later transactions were not changed.` });
      break;
    }
  }
  return { done };
}

function inOrder(body: PreviewBody): number[] {
  return [...(body.txids ?? [])].sort((a, b) => a - b);
}
