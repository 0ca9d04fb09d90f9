/**
 * `palimpsest audit keygen, checkpoint, prove, check`: what proves to others, from outside of the log, that nothing in
 * it was changed.
 */
import fs from 'node:fs';
import { jsonText, KvError, plural, readJson } from '../../native/index.ts';
import {
  appendCheckpoints,
  type Checkpoint,
  checkProof,
  entryId,
  headerKeyId,
  type InclusionProof,
  makeCheckpointKeys,
  parseEntryId,
  proveEntry,
  readCheckpoints,
  readVerifier,
  signLog,
  verifierText,
} from '../../witness/index.ts';
import { logDir } from '../state/folder.ts';
import { flag, type Settings, stateDirOf, text } from './options.ts';

const log = (settings: Settings): string => logDir(stateDirOf(settings));

/** An entry has a MiB at most, so has the body that is disclosed, and the text of both may be escaped once more. */
const PROOF_BYTES_MAX = 8 * 2 ** 20;
/** A file with what an encrypted entry says is for its owner alone, who decides to whom it goes. */
const OWNER_ALONE = 0o600;

function say(settings: Settings, json: unknown, sentence: string): void {
  process.stdout.write(`${flag(settings, 'json') ? jsonText(json) : sentence}\n`);
}

export async function keygen(settings: Settings, path: string): Promise<void> {
  const key = makeCheckpointKeys(path);
  const [verifier, keyId, publicPath] = [verifierText(key), headerKeyId(key), `${path}.pub`];
  say(
    settings,
    { privateKey: path, publicKey: publicPath, keyId, verifier },
    `Key ${keyId}: ${path} signs and stays with you, ${publicPath} is for those who check.\nAs verifier key: ${verifier}`,
  );
}

/** Signs the log as it is now. With --output the checkpoints are added to a file, without it they are printed. */
export async function checkpoint(settings: Settings): Promise<void> {
  const path = text(settings, 'key');
  if (path === undefined)
    throw new KvError('bad-argument', '--key FILE is missing', {
      hint: 'make a pair of keys with: palimpsest audit keygen audit.key',
    });
  const notes = signLog(log(settings), path);
  const output = text(settings, 'output');
  if (output === undefined) {
    process.stdout.write(flag(settings, 'json') ? `${jsonText({ notes })}\n` : notes.join(''));
    return;
  }
  appendCheckpoints(output, notes);
  say(settings, { path: output, checkpoints: notes.length }, `${output}: ${plural(notes.length, 'checkpoint')} added`);
}

/** The checkpoints that --against names, each signed by a key that --trusted-key names. */
export function checkpointsOf(settings: Settings): Checkpoint[] | null {
  const paths = settings['against'] as string[] | undefined;
  const keys = ((settings['trustedKey'] as string[] | undefined) ?? []).map(readVerifier);
  if (paths === undefined && keys.length === 0) return null;
  if (paths === undefined || keys.length === 0)
    throw new KvError('bad-argument', 'checkpoints and the keys that may have signed them are needed together', {
      hint: 'add --against FILE and --trusted-key KEY.pub',
    });
  const all = paths.flatMap((path) => readCheckpoints(path, keys));
  if (all.length === 0)
    throw new KvError('not-found', `there is no checkpoint in ${paths.join(', ')}`, {
      values: { files: paths.join() },
      hint: 'write one: palimpsest audit checkpoint --key audit.key -o anchor.txt',
    });
  return all;
}

/** Checks a proof: nothing but its file and a key is read. */
export async function check(settings: Settings, path: string): Promise<void> {
  const keys = ((settings['trustedKey'] as string[] | undefined) ?? []).map(readVerifier);
  if (keys.length === 0)
    throw new KvError('bad-argument', '--trusted-key KEY is missing', {
      hint: 'name the verifier key of the log that the proof is of',
    });
  const hint = 'name a file that `audit prove` wrote';
  const proof = readJson(path, { bytesMax: PROOF_BYTES_MAX, code: 'bad-signature', hint });
  const entry = checkProof(proof, keys);
  const disclosed = (proof as InclusionProof).disclosed !== undefined;
  const { seq, kind } = entry as { seq: number; kind: string };
  const what = disclosed ? `, and this is what it was encrypted from` : '';
  say(
    settings,
    { entry, disclosed },
    `entry ${entryId(seq)} (${kind}) is one of those that were signed${what}:\n${jsonText(entry)}`,
  );
}

export async function prove(settings: Settings, id: string): Promise<void> {
  const checkpoints = checkpointsOf(settings);
  if (checkpoints === null)
    throw new KvError('bad-argument', '--against FILE and --trusted-key KEY are missing', {
      hint: 'a proof leads to a checkpoint that was signed: palimpsest audit checkpoint --key audit.key -o anchor.txt',
    });
  const seq = parseEntryId(id);
  const disclose = flag(settings, 'disclose');
  const proof = proveEntry(log(settings), seq, checkpoints, { disclose });
  const output = text(settings, 'output');
  if (output === undefined) {
    process.stdout.write(`${JSON.stringify(proof)}\n`);
    return;
  }
  const disclosed = proof.disclosed !== undefined;
  fs.writeFileSync(output, `${JSON.stringify(proof, null, 1)}\n`, disclosed ? { mode: OWNER_ALONE } : {});
  const open = disclosed ? ', with its plain body' : disclose ? ', and was never encrypted' : '';
  say(
    settings,
    { path: output, treeSize: proof.treeSize, hashes: proof.path.length, disclosed },
    `${output}: entry ${entryId(seq)} is one of the ${proof.treeSize} that were signed${open}`,
  );
}
