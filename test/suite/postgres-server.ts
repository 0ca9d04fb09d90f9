/** A PostgreSQL server for tests that kill it: a cluster in a temporary folder, which only its own process serves. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { chmodSync, chownSync, existsSync, mkdtempSync, openSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import postgres from 'postgres';
import { freePort } from './qdrant-server.ts';

const VERSION_LEAST = 15;
const BASE = '/usr/lib/postgresql';
const versions = existsSync(BASE)
  ? readdirSync(BASE)
      .map(Number)
      .filter((version) => version >= VERSION_LEAST && existsSync(join(BASE, String(version), 'bin', 'initdb')))
  : [];
const programs = versions.length === 0 ? null : join(BASE, String(Math.max(...versions)), 'bin');
/** True if tests can start a server of their own. */
export const HAS_POSTGRES = programs !== null;

/** PostgreSQL refuses to run as root, so root starts it as the user whom its package has created. */
function servant(): { uid?: number; gid?: number } {
  if (process.getuid?.() !== 0) return {};
  const id = (flag: string): number => Number(execFileSync('id', [flag, 'postgres'], { encoding: 'utf8' }));
  return { uid: id('-u'), gid: id('-g') };
}

export class PostgresProcess {
  readonly dir = mkdtempSync(join(tmpdir(), 'palimpsest-postgres-'));
  readonly port: number;
  readonly #as = servant();
  #child: ChildProcess | null = null;

  private constructor(port: number) {
    this.port = port;
  }

  static async start(): Promise<PostgresProcess> {
    const server = new PostgresProcess(await freePort());
    const { uid, gid } = server.#as;
    chmodSync(server.dir, 0o700);
    if (uid !== undefined) chownSync(server.dir, uid, gid!);
    const words = ['-D', join(server.dir, 'data'), '-A', 'trust', '-U', 'palimpsest', '-E', 'UTF8', '--no-locale'];
    execFileSync(join(programs!, 'initdb'), [...words, '--no-sync'], {
      ...server.#as,
      cwd: server.dir,
      stdio: 'ignore',
    });
    await server.start();
    return server;
  }

  get url(): string {
    return `postgres://palimpsest@127.0.0.1:${this.port}/postgres`;
  }

  /**
   * Starts it and returns when it answers. What a killed server has left of its shared memory may take moments to go,
   * so it is tried again.
   */
  async start(): Promise<void> {
    const settings = ['-c', 'listen_addresses=127.0.0.1', '-c', 'fsync=off', '-p', String(this.port), '-k', this.dir];
    const said = openSync(join(this.dir, 'said'), 'a');
    for (let tries = 0; tries < 600; tries++) {
      if (this.#child === null || this.#child.exitCode !== null || this.#child.signalCode !== null)
        this.#child = spawn(join(programs!, 'postgres'), ['-D', join(this.dir, 'data'), ...settings], {
          ...this.#as,
          cwd: this.dir,
          stdio: ['ignore', said, said],
        });
      if (await this.#answers()) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`PostgreSQL did not start: see ${this.dir}/said`);
  }

  async #answers(): Promise<boolean> {
    const sql = postgres(this.url, { max: 1, connect_timeout: 2, fetch_types: false, onnotice: () => {} });
    try {
      await sql`select 1`;
      return true;
    } catch {
      return false;
    } finally {
      await sql.end({ timeout: 0 });
    }
  }

  /** Ends the server as a crash would; the processes that serve connections end when they notice. */
  async kill(): Promise<void> {
    const child = this.#child;
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await ended;
  }

  async remove(): Promise<void> {
    await this.kill();
    rmSync(this.dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}
