/** A Qdrant server for tests: a real one on loopback that is started, killed, slowed and given a small disk. */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const BINARY = join(import.meta.dirname, '..', '..', '..', 'shared', 'bin', 'qdrant');
/** True if tests can start a server of their own. */
export const HAS_BINARY = existsSync(BINARY);

/** A port below those that the system gives to connections, so that no connection takes it before the server does. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(20_000, 32_000);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once('error', () => resolve(false));
      server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
    });
    if (isFree) return port;
  }
}

const opened = new Set<QdrantProcess>();

/** Ends and removes every server, those too that a test that failed has left. */
export async function removeServers(): Promise<void> {
  for (const server of opened) await server.remove();
}

export interface StartOptions {
  readonly apiKey?: string;
  /** Settings of Qdrant, as environment variables. */
  readonly environment?: Readonly<Record<string, string>>;
  readonly flags?: readonly string[];
  /** Bytes of a disk of its own, as a mount that nobody else sees. */
  readonly diskBytes?: number;
  /** How it is reached. Default 'http'. */
  readonly scheme?: 'http' | 'https';
}

/** One server with a folder and a port that outlive its process. */
export class QdrantProcess {
  readonly dir = mkdtempSync(join(tmpdir(), 'palimpsest-qdrant-'));
  readonly port: number;
  readonly url: string;
  readonly #options: StartOptions;
  #child: ChildProcess | null = null;

  private constructor(port: number, options: StartOptions) {
    this.port = port;
    this.url = `${options.scheme ?? 'http'}://127.0.0.1:${port}`;
    this.#options = options;
  }

  static async start(options: StartOptions = {}): Promise<QdrantProcess> {
    const server = new QdrantProcess(await freePort(), options);
    await server.start();
    return server;
  }

  get pid(): number {
    return this.#child!.pid!;
  }

  /** Starts it, unless it is running. */
  async start(): Promise<void> {
    if (this.#child !== null && isAlive(this.#child)) return;
    const { apiKey, environment = {}, flags = [], diskBytes } = this.#options;
    const data = join(this.dir, 'data');
    mkdirSync(data, { recursive: true });
    const settings = {
      QDRANT__SERVICE__HOST: '127.0.0.1',
      QDRANT__SERVICE__HTTP_PORT: String(this.port),
      QDRANT__SERVICE__GRPC_PORT: String(await freePort()),
      QDRANT__STORAGE__STORAGE_PATH: join(data, 'storage'),
      QDRANT__STORAGE__SNAPSHOTS_PATH: join(data, 'snapshots'),
      QDRANT__STORAGE__PERFORMANCE__MAX_SEARCH_THREADS: '1',
      QDRANT__LOG_LEVEL: 'WARN',
      ...(apiKey === undefined ? {} : { QDRANT__SERVICE__API_KEY: apiKey }),
      ...environment,
    };
    const words = [BINARY, '--disable-telemetry', ...flags];
    const mount = `mount -t tmpfs -o size=${diskBytes} none '${data}' && exec "$@"`;
    const [program, ...args] = diskBytes === undefined ? words : ['unshare', '-rm', 'sh', '-c', mount, 'sh', ...words];
    const said = openSync(join(this.dir, 'said'), 'a');
    const child = spawn(program!, args, {
      cwd: this.dir,
      env: { ...process.env, ...settings },
      stdio: ['ignore', said, said],
    });
    this.#child = child;
    opened.add(this);
    for (let tries = 0; tries < 600; tries++) {
      if (child.exitCode !== null) throw new Error(`Qdrant ended with ${child.exitCode}: see ${this.dir}/said`);
      if (await accepts(this.port)) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error('Qdrant did not start within half a minute');
  }

  /** Ends the process, by default as a crash would. */
  async kill(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    const child = this.#child;
    if (child === null || !isAlive(child)) return;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill(signal);
    await ended;
  }

  /** Memory of the process, as Linux counts it. */
  residentBytes(): number {
    const [, pages] = readFileSync(`/proc/${this.pid}/statm`, 'utf8').split(' ');
    return Number(pages) * 4096;
  }

  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.dir, { recursive: true, force: true });
  }
}

const isAlive = (child: ChildProcess): boolean => child.exitCode === null && child.signalCode === null;

/** True if the port takes a connection: its web server comes up when everything was loaded. */
const accepts = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => resolve(true));
    socket.once('error', () => resolve(false));
    socket.once('close', () => socket.destroy());
    socket.once('connect', () => socket.destroy());
  });

/** A line to a server that can be made slow or cut. */
export class Line {
  /** Milliseconds by which answers are late. */
  delayMs = 0;
  /** Answers are cut off after so many bytes. */
  bytesMax = Number.POSITIVE_INFINITY;
  /** Connections taken. */
  taken = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(port: number) {
    this.#server = createServer((near) => {
      this.taken++;
      const far = connect(port, '127.0.0.1');
      let bytes = 0;
      for (const socket of [near, far]) {
        this.#sockets.add(socket);
        socket.on('error', () => {});
        socket.on('close', () => {
          this.#sockets.delete(socket);
          near.destroy();
          far.destroy();
        });
      }
      near.on('data', (chunk) => far.write(chunk));
      far.on('data', (chunk) =>
        setTimeout(() => {
          bytes += chunk.length;
          if (bytes <= this.bytesMax) near.write(chunk);
          else near.destroy();
        }, this.delayMs),
      );
    });
  }

  static async open(port: number): Promise<Line> {
    const line = new Line(port);
    await new Promise<void>((resolve) => line.#server.listen(0, '127.0.0.1', resolve));
    return line;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as { port: number }).port}`;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
