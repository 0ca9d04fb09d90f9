/**
 * The process of a helper: what it is started with, and what it may do and take. It has no environment, an empty
 * folder that is removed as soon as it runs, Node's permissions for reading its own code and nothing else, limits of
 * memory and processor time where the system has `prlimit`, the lowest claim to the processor, and a signal that ends
 * it with the thread that started it where the system has `setpriv`. Native code is not bound by Node's permissions:
 * what they keep from a helper is its JavaScript, and the rest is kept by limits and by what a graph can express.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { KvError, type RunnableModule, runnableModule } from '../../native/index.ts';
import { FrameReader, framed, type SentTensor } from './frames.ts';
import { ONNX_LIMITS } from './onnx-scan.ts';

/** What a helper may take. */
export interface HelperLimits {
  /** Memory that it may write to, without what its libraries map. */
  readonly dataBytes: number;
  /** Processor time of its whole life; then it is started again. */
  readonly cpuSeconds: number;
  /** For starting and loading the model. */
  readonly startMs: number;
  /** For an answer. */
  readonly deadlineMs: number;
}

/** Programs of the system that limit others; null: this system has none, or not here. */
export interface Wardens {
  readonly prlimit: string | null;
  readonly setpriv: string | null;
  readonly nice: string | null;
  readonly chrt: string | null;
}

/** Longest message in either direction, beside the model. */
const MESSAGE_BYTES_MAX = 16 * 2 ** 20;
/** JavaScript of a helper is a few hundred lines; its heap is for messages. */
const HEAP_MB = 64;
/** How often memory is looked at where the system does not limit it. */
const WATCH_MS = 500;

/** Not those of the PATH, which anybody may set. */
const program = (name: string): string | null =>
  ['/usr/bin', '/bin', '/usr/local/bin'].map((folder) => join(folder, name)).find((path) => existsSync(path)) ?? null;

/** Those that this system has. Only Linux has the first two. */
export function findWardens(): Wardens {
  if (process.platform === 'win32') return { prlimit: null, setpriv: null, nice: null, chrt: null };
  return { prlimit: program('prlimit'), setpriv: program('setpriv'), nice: program('nice'), chrt: program('chrt') };
}

interface OrtFiles {
  readonly file: string;
  readonly folders: readonly string[];
}

let ortFiles: OrtFiles | null = null;

/** Where onnxruntime-node is, and which folders of it are read. Looked for once, since decoding waits meanwhile. */
export function findOrt(): OrtFiles | null {
  ortFiles ??= lookForOrt();
  return ortFiles;
}

function lookForOrt(): OrtFiles | null {
  try {
    const file = createRequire(import.meta.url).resolve('onnxruntime-node');
    const common = createRequire(file).resolve('onnxruntime-common');
    return { file, folders: [packageFolder(file), packageFolder(common)] };
  } catch {
    return null;
  }
}

/** What is said where there is none. */
export const withoutOrt = (): KvError =>
  new KvError('missing-dependency', 'onnxruntime-node is not installed, and helpers run on it', {
    hint: 'npm install onnxruntime-node --ignore-scripts',
  });

/** .../node_modules/NAME of a file of the package NAME. */
function packageFolder(file: string): string {
  let folder = dirname(file);
  while (basename(dirname(folder)) !== 'node_modules' && dirname(folder) !== folder) folder = dirname(folder);
  return folder;
}

/** What Node calls its permissions: without "experimental" since 22.13 and 23.5. */
const PERMISSION = process.allowedNodeEnvironmentFlags.has('--permission')
  ? '--permission'
  : '--experimental-permission';

/** Program and arguments of a helper. */
export function commandOf(
  { dataBytes, cpuSeconds }: Pick<HelperLimits, 'dataBytes' | 'cpuSeconds'>,
  { prlimit, setpriv, nice, chrt }: Wardens,
  { url, loader }: RunnableModule,
  ort: NonNullable<ReturnType<typeof findOrt>>,
): string[] {
  const file = fileURLToPath(url);
  const folder = dirname(file);
  const read = [
    file,
    join(folder, basename(file).replace('child', 'frames')),
    ...ort.folders.map((path) => join(path, '*')),
  ];
  // From sources the loader of TypeScript starts a program of its own, which permissions forbid.
  const permissions =
    loader === null ? [PERMISSION, '--allow-addons', ...read.map((path) => `--allow-fs-read=${path}`)] : [];
  return [
    ...(prlimit === null ? [] : [prlimit, `--data=${dataBytes}`, `--cpu=${cpuSeconds}`, '--core=0']),
    ...(setpriv === null ? [] : [setpriv, '--pdeathsig', 'KILL']),
    ...(nice === null ? [] : [nice, '-n', '10']),
    // It waits for its turn when it wakes, in place of taking that of the engine.
    ...(chrt === null ? [] : [chrt, '--batch', '0']),
    process.execPath,
    '--no-warnings',
    `--max-old-space-size=${HEAP_MB}`,
    ...permissions,
    ...(loader === null ? [] : ['--import', loader.href]),
    file,
    ort.file,
    String(MESSAGE_BYTES_MAX + ONNX_LIMITS.bytesMax),
  ];
}

interface Pending {
  readonly done: (tensors: readonly SentTensor[]) => void;
  readonly failed: (error: Error) => void;
}

/** One process, from its start to its end. Every fault of it is an Error that says what happened. */
export class HelperProcess {
  readonly #child: ChildProcess;
  readonly #pending = new Map<number, Pending>();
  readonly #exited: Promise<void>;
  readonly #dataBytes: number;
  readonly #isLimited: boolean;
  #last = 0;
  #ended: Error | null = null;
  /** Settles when the model is loaded. */
  readonly ready: Promise<unknown>;

  /** Throws 'missing-dependency' without onnxruntime-node, 'io' where the system starts nothing. */
  constructor(model: Uint8Array, limits: HelperLimits, wardens: Wardens) {
    const ort = findOrt();
    if (ort === null) throw withoutOrt();
    const module = runnableModule(new URL('./child.ts', import.meta.url));
    const [command, ...args] = commandOf(limits, wardens, module, ort);
    const cwd = mkdtempSync(join(tmpdir(), 'palimpsest-helper-'));
    const removed = (): void => rmSync(cwd, { recursive: true, force: true });
    this.#dataBytes = limits.dataBytes;
    this.#isLimited = wardens.prlimit !== null;
    this.#child = spawn(command!, args, { cwd, env: {}, stdio: ['pipe', 'ignore', 'ignore', 'pipe'] });
    this.#exited = new Promise((resolve) => {
      this.#child.once('error', (error) => resolve(this.#end(`could not be started: ${error.message}`)));
      this.#child.once('exit', (code, signal) => resolve(this.#end(`ended ${signal ?? `with ${code}`}`)));
    });
    void this.#exited.then(removed);
    this.#listen();
    this.ready = this.#ask(
      0,
      [{ name: 'model', type: 'uint8', dims: [model.byteLength], data: model }],
      limits.startMs,
    );
    // Windows keeps the folder of a process; there it goes when the process does.
    if (process.platform !== 'win32') this.ready.then(removed, () => undefined);
  }

  /** Of the process; null: it was not started. */
  get pid(): number | null {
    return this.#child.pid ?? null;
  }

  /** → what the model makes of these tensors. Rejects with an Error for whatever goes wrong. */
  ask(tensors: readonly SentTensor[], deadlineMs: number): Promise<readonly SentTensor[]> {
    return this.#ask(++this.#last, tensors, deadlineMs);
  }

  /** Ends it whatever it does, and waits until it is gone. */
  async end(): Promise<void> {
    this.#child.ref();
    this.#child.kill('SIGKILL');
    await this.#exited;
  }

  #listen(): void {
    const { stdin } = this.#child;
    const answers = this.#child.stdio[3] as Readable;
    const reader = new FrameReader(MESSAGE_BYTES_MAX);
    // What is written to a process that has ended is lost; that it has ended is told by its exit.
    stdin!.on('error', () => undefined);
    answers.on('error', () => undefined);
    answers.on('data', (chunk: Buffer) => {
      try {
        for (const { id, trouble, tensors } of reader.push(chunk)) {
          const pending = this.#pending.get(id);
          if (trouble === undefined) pending?.done(tensors);
          else pending?.failed(new Error(trouble));
        }
      } catch (error) {
        this.#end(`sent ${(error as Error).message}`);
        this.#child.kill('SIGKILL');
      }
    });
    // A program ends when its own work has, whether or not helpers run.
    this.#child.unref();
    for (const pipe of [stdin, answers]) (pipe as unknown as { unref?: () => void }).unref?.();
  }

  #ask(id: number, tensors: readonly SentTensor[], deadlineMs: number): Promise<readonly SentTensor[]> {
    return new Promise((resolve, reject) => {
      if (this.#ended !== null) {
        reject(this.#ended);
        return;
      }
      const timer = setTimeout(
        () => settle(() => reject(new Error(`gave no answer within ${deadlineMs} ms`))),
        deadlineMs,
      );
      const watch = this.#isLimited ? undefined : setInterval(() => this.#watch(), WATCH_MS).unref();
      const settle = (how: () => void): void => {
        clearTimeout(timer);
        clearInterval(watch);
        this.#pending.delete(id);
        how();
      };
      this.#pending.set(id, {
        done: (answer) => settle(() => resolve(answer)),
        failed: (error) => settle(() => reject(error)),
      });
      (this.#child.stdin as Writable).write(framed({ id, tensors }));
    });
  }

  /** Where nothing limits its memory, it is looked at, and ended when it has too much. */
  #watch(): void {
    if (this.pid === null || process.platform === 'win32') return;
    execFile('ps', ['-o', 'rss=', '-p', String(this.pid)], (error, output) => {
      const rssBytes = 1024 * Number(output);
      if (error === null && rssBytes > this.#dataBytes) {
        this.#end(`held ${rssBytes} bytes, ${this.#dataBytes} being allowed`);
        this.#child.kill('SIGKILL');
      }
    });
  }

  #end(what: string): void {
    this.#ended ??= new Error(what);
    for (const { failed } of [...this.#pending.values()]) failed(this.#ended);
  }
}
