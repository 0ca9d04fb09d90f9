/**
 * A hub of the test's own: a real HTTP server with the interface of the Hugging Face Hub, which cuts, stalls, lies and
 * refuses as it is told.
 */
import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { HubSettings } from '../../../../../engine/transformer/hub/settings.ts';

export interface Seen {
  readonly path: string;
  readonly range: string | undefined;
  readonly authorization: string | undefined;
}

/** What a server does to one request for a file, instead of answering it. */
export type Trick =
  | { readonly kind: 'status'; readonly status: number; readonly headers?: Readonly<Record<string, string>> }
  /**
   * Sends so many bytes of the body and breaks the connection off, ends it as if it were whole, or says nothing more.
   */
  | { readonly kind: 'cut' | 'end' | 'stall'; readonly after: number }
  /** Other headers than are true, and more bytes than there are. */
  | {
      readonly kind: 'lie';
      readonly status?: number;
      readonly headers?: Readonly<Record<string, string>>;
      readonly more?: number;
    }
  /** Bytes of the content are others. */
  | { readonly kind: 'damage' }
  /** Answers as a server that knows no ranges. */
  | { readonly kind: 'whole' }
  | { readonly kind: 'redirect'; readonly to: string };

interface Repository {
  readonly commit: string;
  readonly files: ReadonlyMap<string, Buffer>;
}

const sha1 = (bytes: Uint8Array | string): string => createHash('sha1').update(bytes).digest('hex');
export const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');
/** The Hub keeps weights apart from git. */
const isLarge = (path: string): boolean => /\.(gguf|safetensors|bin)$/.test(path);

export class HubServer {
  readonly seen: Seen[] = [];
  /** Asked before each request for a file; by default nothing is done to it. */
  trick: (seen: Seen) => Trick | undefined = () => undefined;
  /** What an answer of the interface becomes. */
  answer: (path: string, content: unknown) => { status?: number; body?: string; headers?: Record<string, string> } =
    () => ({});
  readonly #repositories = new Map<string, Repository>();
  readonly #server: Server;

  private constructor() {
    this.#server = createServer((request, response) => this.#serve(request, response));
  }

  static async open(): Promise<HubServer> {
    const hub = new HubServer();
    await new Promise<void>((done) => hub.#server.listen(0, '127.0.0.1', done));
    return hub;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Requests for the contents of files. */
  get downloads(): Seen[] {
    return this.seen.filter(({ path }) => path.includes('/resolve/'));
  }

  add(repo: string, files: Readonly<Record<string, Buffer | string>>): string {
    const contents = Object.entries(files).map(([path, content]) => [path, Buffer.from(content)] as const);
    const commit = sha1(JSON.stringify([repo, contents.map(([path, content]) => [path, sha256(content)])]));
    this.#repositories.set(repo, { commit, files: new Map(contents) });
    return commit;
  }

  reset(): void {
    this.seen.length = 0;
    this.trick = () => undefined;
    this.answer = () => ({});
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((done) => this.#server.close(done));
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const { pathname } = new URL(request.url!, this.url);
    const seen: Seen = { path: pathname, range: request.headers.range, authorization: request.headers.authorization };
    this.seen.push(seen);
    const [, api, repo = '', what, revision, path] =
      /^\/(?:(api\/models)\/)?([^/]+\/[^/]+)\/(revision|tree|resolve)\/([^/]+)(?:\/(.+))?$/.exec(decodeURI(pathname)) ??
      [];
    const repository = this.#repositories.get(repo);
    if (repository === undefined || (revision !== 'main' && revision !== repository.commit)) {
      refuse(response, 404);
      return;
    }
    if (api !== undefined) {
      this.#describe(pathname, what!, repo, repository, response);
      return;
    }
    const content = repository.files.get(path ?? '');
    if (content === undefined) {
      refuse(response, 404);
      return;
    }
    send(response, content, seen.range, this.trick(seen));
  }

  #describe(path: string, what: string, repo: string, { commit, files }: Repository, response: ServerResponse): void {
    const listed = [...files].map(([path, content]) => ({
      ...{ type: 'file', path, size: content.length, oid: gitDigest(content) },
      ...(isLarge(path) ? { lfs: { oid: sha256(content), size: content.length, pointerSize: 134 } } : {}),
    }));
    const folders = [{ type: 'directory', path: 'folder', size: 0, oid: '0'.repeat(40) }];
    const info = {
      _id: '1',
      id: repo,
      sha: commit,
      private: false,
      gated: false,
      likes: 0,
      downloads: 0,
      lastModified: '2026-01-01T00:00:00.000Z',
    };
    const content: unknown = what === 'revision' ? info : [...folders, ...listed];
    const { status = 200, body = JSON.stringify(content), headers = {} } = this.answer(path, content);
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(body);
  }
}

export const gitDigest = (content: Buffer): string =>
  createHash('sha1').update(`blob ${content.length}\0`).update(content).digest('hex');

function refuse(response: ServerResponse, status: number, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(status, { 'content-type': 'text/plain', ...headers });
  response.end(`refused with ${status}`);
}

function send(response: ServerResponse, content: Buffer, range: string | undefined, trick: Trick | undefined): void {
  if (trick?.kind === 'status') {
    refuse(response, trick.status, trick.headers);
    return;
  }
  if (trick?.kind === 'redirect') {
    response.writeHead(302, { location: trick.to });
    response.end();
    return;
  }
  const asked = trick?.kind === 'whole' ? null : /^bytes=(\d+)-(\d*)$/.exec(range ?? '');
  const [from, to] =
    asked === null ? [0, content.length] : [Number(asked[1]), asked[2] === '' ? content.length : Number(asked[2]) + 1];
  if (from >= content.length && asked !== null) {
    refuse(response, 416, { 'content-range': `bytes */${content.length}` });
    return;
  }
  let body = content.subarray(from, to);
  if (trick?.kind === 'damage') body = Buffer.from(body.map((byte, at) => (at % 100 === 7 ? byte ^ 1 : byte)));
  if (trick?.kind === 'lie') body = Buffer.concat([body, Buffer.alloc(trick.more ?? 0)]);
  const headers: Record<string, string> =
    asked === null ? {} : { 'content-range': `bytes ${from}-${to - 1}/${content.length}` };
  // A body that ends too soon without a word can only be one of unknown length.
  if (trick?.kind !== 'end' && trick?.kind !== 'lie') headers['content-length'] = String(body.length);
  response.writeHead(
    trick?.kind === 'lie' ? (trick.status ?? (asked === null ? 200 : 206)) : asked === null ? 200 : 206,
    {
      ...headers,
      ...(trick?.kind === 'lie' ? trick.headers : {}),
    },
  );
  if (trick?.kind === 'cut') response.write(body.subarray(0, trick.after), () => response.destroy());
  else if (trick?.kind === 'stall') response.write(body.subarray(0, trick.after));
  else response.end(trick?.kind === 'end' ? body.subarray(0, trick.after) : body);
}

/** Settings of a machine whose hub this is, with a cache of its own. */
export const settingsFor = (hub: HubServer, dir: string, more: Partial<HubSettings> = {}): HubSettings => ({
  endpoint: hub.url,
  token: null,
  tokenFrom: null,
  cacheDir: join(dir, 'hub'),
  offline: false,
  stallMs: 20_000,
  pauseMs: 1,
  lookBytes: 2 ** 40,
  ollamaDirs: [join(dir, 'ollama')],
  ...more,
});
