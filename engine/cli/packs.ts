/** `palimpsest packs …` makes keys, signs packs and trust files, and says which packs of a state folder are used. */
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { keyIdOf, readPrivateKey, writeKeyPair } from '../../memory/index.ts';
import {
  type Column,
  columnsOf,
  jsonText,
  KvError,
  parseJson,
  printable,
  readJson,
  readRegular,
  replaceFile,
  table,
  wrap,
} from '../../native/index.ts';
import { openWitnessLog } from '../../witness/index.ts';
import { ActivePacks } from '../packs/active.ts';
import { testPack } from '../packs/contract.ts';
import {
  countersign,
  ENVELOPE_BYTES_MAX,
  readEnvelope,
  STATEMENT_TYPE,
  statementBytes,
  TRUST_TYPE,
  writeEnvelope,
} from '../packs/envelope.ts';
import { ENVELOPE_NAME, readPackFolder, writePackFolder } from '../packs/folder.ts';
import { instrumentModule } from '../packs/instrument.ts';
import { PackKeeper, type PackTrial } from '../packs/lifecycle.ts';
import { MODULE_BYTES_MAX, readManifest } from '../packs/manifest.ts';
import { checkModule } from '../packs/module.ts';
import { type PackRecord, PackStore, sha256Of } from '../packs/store.ts';
import { trustOf } from '../packs/trust.ts';
import { parkedPacks } from '../session/park/folder.ts';
import { logDir } from '../state/folder.ts';
import { flag, type Settings, stateDirOf, text } from './options.ts';

function say(settings: Settings, value: unknown, sentence: string): void {
  const plain = (): string => wrap(printable(sentence), columnsOf(process.stdout));
  process.stdout.write(`${flag(settings, 'json') ? jsonText(value) : plain()}\n`);
}

/** What a module goes through before it may be used. */
const trial: PackTrial = {
  instrument(module) {
    checkModule(module);
    return instrumentModule(module);
  },
  test: testPack,
};

/** Does something to the packs of the state folder, with its log open, and retires those that nobody reads by then. */
async function withKeeper<T>(settings: Settings, work: (keeper: PackKeeper) => Promise<T>): Promise<T> {
  const dir = stateDirOf(settings);
  const log = await openWitnessLog({ dir: logDir(dir), encrypt: true });
  try {
    const keeper = await PackKeeper.open({ stateDir: dir, log, parked: () => parkedPacks(dir) });
    try {
      const result = await work(keeper);
      await keeper.retire();
      return result;
    } finally {
      keeper.close();
    }
  } finally {
    await log.close();
  }
}

const isFolder = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;

export async function keygen(settings: Settings, path: string): Promise<void> {
  const { publicKey, path: publicPath } = writeKeyPair(path);
  const id = keyIdOf(publicKey);
  say(
    settings,
    { privateKey: path, publicKeyFile: publicPath, id, publicKey },
    `Key ${id}: ${path} signs and stays with you. A trust file names it so: {"id": "${id}", "publicKey": "${publicKey}", "expires": …}`,
  );
}

/**
 * Signs a manifest with its module, which makes a pack; or a trust file; or, once more, what was signed before, in
 * place.
 */
export async function sign(settings: Settings, path: string, module?: string): Promise<void> {
  const keyPath = text(settings, 'key');
  if (keyPath === undefined)
    throw new KvError('bad-argument', 'no key was named', { hint: 'name the private key with --key FILE' });
  const key = readPrivateKey(keyPath);
  const output = text(settings, 'output') ?? path;
  const told = { path: output, keys: [keyPath] };
  if (module !== undefined) {
    const bytes = readRegular(module, { bytesMax: MODULE_BYTES_MAX });
    checkModule(bytes);
    const manifest = readManifest(readJson(path, { bytesMax: ENVELOPE_BYTES_MAX, code: 'bad-file' }), path);
    if (output === path)
      throw new KvError('bad-argument', 'a pack is a folder, which has to be named', { hint: '--output FOLDER' });
    const payload = statementBytes({ digest: sha256Of(bytes), manifest });
    writePackFolder({ path: output, module: bytes, envelope: writeEnvelope(STATEMENT_TYPE, payload, [key]) });
  } else if (isFolder(path)) {
    const files = readPackFolder(path);
    const envelope = countersign(readEnvelope(files.envelope, STATEMENT_TYPE, join(path, ENVELOPE_NAME)), [key]);
    writePackFolder({ ...files, envelope, path: output });
  } else {
    const bytes = readRegular(path, { bytesMax: ENVELOPE_BYTES_MAX });
    const value = parseJson(bytes, { code: 'bad-file', what: path });
    const isSigned = typeof value === 'object' && value !== null && 'payloadType' in value;
    if (!isSigned) trustOf(value, path);
    replaceFile(
      output,
      isSigned ? countersign(readEnvelope(bytes, TRUST_TYPE, path), [key]) : writeEnvelope(TRUST_TYPE, bytes, [key]),
    );
  }
  say(settings, told, `${output} is signed by ${keyPath}`);
}

/** A folder is a pack, a file a trust file. */
export async function install(settings: Settings, path: string): Promise<void> {
  if (!existsSync(path)) throw new KvError('not-found', `${path} does not exist`, { values: { path } });
  if (isFolder(path)) {
    const files = readPackFolder(path);
    const { record, isKnown } = await withKeeper(settings, (keeper) => keeper.install(files, trial));
    const what = `${record.name} ${record.version} (${record.digest.slice(0, 12)})`;
    say(
      settings,
      { ...record, isKnown },
      isKnown ? `${what} is installed already: ${record.state}` : `${what} is installed and tested, and not yet used`,
    );
    return;
  }
  const bytes = readRegular(path, { bytesMax: ENVELOPE_BYTES_MAX });
  const { version, expires, roles, packs } = await withKeeper(settings, async (keeper) => {
    const trust = await keeper.installTrust(bytes, path);
    return { ...trust, packs: keeper.generation!.packs.length };
  });
  say(
    settings,
    { version, expires, roles, packs },
    `Trust version ${version}, until ${expires}: ${roles.root.threshold} of ${roles.root.keys.join(', ')} sign its next version, ${roles.packs.threshold} of ${roles.packs.keys.join(', ')} sign packs`,
  );
}

export async function activate(settings: Settings, typed: string): Promise<void> {
  const isCanary = flag(settings, 'canary');
  const record = await withKeeper(settings, (keeper) => keeper.activate(typed, isCanary));
  const who = isCanary ? 'sessions that ask for it as a canary' : 'sessions that begin from now on and ask for it';
  say(settings, record, `${record.name} ${record.version} writes new pages of ${who}`);
}

export async function rollback(settings: Settings, typed?: string): Promise<void> {
  if (typed !== undefined && !/^[1-9]\d{0,8}$/.test(typed))
    throw new KvError('bad-argument', 'a generation is a number', { values: { generation: typed.slice(0, 80) } });
  const number = typed === undefined ? null : Number(typed);
  const { generation, packs } = await withKeeper(settings, (keeper) =>
    keeper.rollback(number, { because: 'palimpsest packs rollback' }),
  );
  const active = packs.filter(({ state }) => state === 'active').map(({ name, version }) => `${name} ${version}`);
  const now = active.length === 0 ? 'no pack is active' : `${active.join(', ')} writes new pages`;
  say(settings, { generation, active }, `Generation ${generation}: ${now}; others only read pages that sessions have`);
}

export async function list(settings: Settings): Promise<void> {
  const now = new PackStore(stateDirOf(settings)).current();
  if (flag(settings, 'json')) process.stdout.write(`${jsonText(now?.packs ?? [])}\n`);
  else if (now === null) say(settings, [], 'No trust file is installed, so no pack is used');
  else process.stdout.write(`${listText(now.packs, columnsOf(process.stdout))}\n`);
}

const COLUMNS: readonly Column<PackRecord>[] = [
  { title: 'name', align: 'left', value: ({ name }) => name },
  { title: 'version', align: 'left', value: ({ version }) => version },
  { title: 'digest', align: 'left', value: ({ digest }) => digest.slice(0, 12) },
  { title: 'state', align: 'left', value: ({ state }) => state },
  { title: 'signed by', align: 'left', optional: true, value: ({ keyIds }) => keyIds.join(' ') },
  { title: 'trust', optional: true, value: ({ trustVersion }) => String(trustVersion) },
];

const listText = (packs: readonly PackRecord[], columns: number): string =>
  packs.length === 0 ? 'No pack is installed' : table([...COLUMNS], packs, columns);

/**
 * Whether a pack would be taken by what the state folder trusts; without a path, whether all packs that are used there
 * are what was installed. Nothing is installed.
 */
export async function verify(settings: Settings, path?: string): Promise<void> {
  if (path === undefined) return verifyUsed(settings);
  const files = readPackFolder(path);
  checkModule(files.module);
  const { manifest, digest, keyIds, trustVersion } = await withKeeper(settings, async (keeper) => keeper.check(files));
  const { name, version } = manifest;
  say(
    settings,
    { path, name, version, digest, keyIds, trustVersion, verified: true },
    `${name} ${version} (${digest.slice(0, 12)}) is signed by ${keyIds.join(', ')}, which trust version ${trustVersion} has`,
  );
}

function verifyUsed(settings: Settings): void {
  const packs = new ActivePacks({ stateDir: stateDirOf(settings), instrument: trial.instrument });
  const used = packs.loadAll().map(({ name, version, digest, state }) => ({ name, version, digest, state }));
  const names = used.map(({ name, version }) => `${name} ${version}`);
  say(
    settings,
    { generation: packs.generation, packs: used, verified: true },
    used.length === 0 ? 'No pack is used' : `What was installed is there: ${names.join(', ')}`,
  );
}
