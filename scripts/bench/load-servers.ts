/** The servers that `npm run bench -- load` asks, each in a process of its own. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { f16CacheBytes } from '../../engine/cache/budget.ts';
import { metricSums } from '../../engine/serve/top-metrics.ts';
import { obtainModel } from '../../engine/transformer/hub/obtain.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { KvError } from '../../native/index.ts';

export interface AskedServer {
  readonly url: string;
  /** The most that its caches may hold. */
  readonly kvBytesMost: number;
  readonly residentBytes: number;
  countedBytes(): Promise<number>;
  /** Ends it as a service manager does, and says with what code it ended; again, it only says so. */
  stop(): Promise<number | null>;
}

/** What a server is started with. */
export interface Asked {
  readonly root: string;
  readonly model: string;
  readonly threads: number;
  readonly kvBudgetBytes: number;
  readonly state: string;
}

const SYSTEM_PAGE = 4096;

const residentOf = ({ pid }: ChildProcess): number =>
  SYSTEM_PAGE * Number(readFileSync(`/proc/${pid}/statm`, 'latin1').split(' ')[1]);

async function ended(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const exit = once(child, 'exit');
  child.kill('SIGTERM');
  await exit;
}

export class ServerProcess implements AskedServer {
  readonly #child: ChildProcess;
  readonly url: string;
  readonly kvBytesMost: number;

  private constructor(child: ChildProcess, url: string, kvBytesMost: number) {
    this.#child = child;
    this.url = url;
    this.kvBytesMost = kvBytesMost;
  }

  static async start({ root, model, threads, kvBudgetBytes, state }: Asked): Promise<ServerProcess> {
    const flags = ['--state', state, '--kv-budget', `${kvBudgetBytes}`, '--threads', `${threads}`];
    const args = ['serve', '-m', model, ...flags, '--port', '0', '--metrics', '--json'];
    const program = join(root, 'engine/cli/main.ts');
    const child = spawn(process.execPath, ['--import', 'tsx', program, ...args], {
      cwd: root,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const line = await Promise.race([
      once(createInterface({ input: child.stdout! }), 'line').then(([text]) => text as string),
      once(child, 'exit').then(() => null),
    ]);
    if (line === null) throw new KvError('missing-dependency', 'the server did not start');
    return new ServerProcess(child, (JSON.parse(line) as { url: string }).url, kvBudgetBytes);
  }

  get residentBytes(): number {
    return residentOf(this.#child);
  }

  async countedBytes(): Promise<number> {
    return metricSums(await (await fetch(`${this.url}/metrics`)).text()).get('kv_bytes') ?? 0;
  }

  /** Ends it as a service manager does, and says with what code it ended; again, it only says so. */
  async stop(): Promise<number | null> {
    await ended(this.#child);
    return this.#child.exitCode;
  }
}

/** Conversations that a peer holds at one time, as many as the budget of this server does, and tokens of each. */
const [SLOTS, SLOT_TOKENS] = [8, 2048];
const PEER_PORT = 19_470;
const STARTING_MS_MAX = 60_000;

/** A llama-server: every conversation in a slot, in f16, whose bytes are its own from the beginning. */
export class PeerProcess implements AskedServer {
  readonly #child: ChildProcess;
  readonly url = `http://127.0.0.1:${PEER_PORT}`;
  readonly kvBytesMost: number;

  private constructor(child: ChildProcess, kvBytesMost: number) {
    this.#child = child;
    this.kvBytesMost = kvBytesMost;
  }

  static async start({ model, threads }: Asked, program: string): Promise<PeerProcess> {
    const file = await obtainModel(model);
    const { config, weights } = await loadModel(file);
    weights.close();
    const slots = ['-c', `${SLOTS * SLOT_TOKENS}`, '-np', `${SLOTS}`, '-t', `${threads}`, '-tb', `${threads}`];
    const child = spawn(program, ['-m', file, ...slots, '--host', '127.0.0.1', '--port', `${PEER_PORT}`], {
      stdio: 'ignore',
    });
    child.once('error', () => undefined);
    const peer = new PeerProcess(child, f16CacheBytes(config, SLOTS * SLOT_TOKENS));
    for (const begun = performance.now(); performance.now() - begun < STARTING_MS_MAX; await sleep(100)) {
      if (child.exitCode !== null || child.pid === undefined) break;
      const response = await fetch(`${peer.url}/health`).catch(() => null);
      if (response?.ok === true) return peer;
    }
    await ended(child);
    throw new KvError('missing-dependency', `${program} did not start`, { values: { program } });
  }

  get residentBytes(): number {
    return residentOf(this.#child);
  }

  countedBytes(): Promise<number> {
    return Promise.resolve(this.kvBytesMost);
  }

  /** → 0: what it ends with says nothing of its answers. */
  async stop(): Promise<number> {
    await ended(this.#child);
    return 0;
  }
}
