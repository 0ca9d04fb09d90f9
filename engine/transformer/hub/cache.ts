/**
 * The cache folder of the Hub, as Hugging Face's own programs lay it out, so that what one fetched is there for all:
 * blobs/DIGEST holds contents, snapshots/COMMIT/PATH are links to them, refs/REVISION says which commit a branch was
 * last.
 */
import {
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
} from 'node:fs';
import { dirname, join, relative, sep } from 'node:path';
import { KvError, replaceFile } from '../../../native/index.ts';
import { attempt } from '../bytes.ts';
import { shardsOf } from '../safetensors.ts';
import { type Choice, chooseFiles } from './choose.ts';
import type { HubName } from './name.ts';

const COMMIT = /^[0-9a-f]{40}$/;

export class CachedRepository {
  readonly repo: string;
  readonly dir: string;

  constructor(cacheDir: string, repo: string) {
    this.repo = repo;
    this.dir = join(cacheDir, `models--${repo.replace('/', '--')}`);
  }

  blob(digest: string): string {
    return join(this.dir, 'blobs', digest);
  }

  snapshot(commit: string): string {
    return join(this.dir, 'snapshots', commit);
  }

  /** The commit that a revision stands for here; null: it is not known. */
  commitOf(revision: string): string | null {
    if (COMMIT.test(revision)) return existsSync(this.snapshot(revision)) ? revision : null;
    const path = join(this.dir, 'refs', ...revision.split('/'));
    if (!existsSync(path) || !statSync(path).isFile() || statSync(path).size > 100) return null;
    const commit = readFileSync(path, 'utf8').trim();
    return COMMIT.test(commit) ? commit : null;
  }

  /**
   * Paths of a snapshot whose contents are there. A link to a blob that is still being fetched leads nowhere and is
   * left out.
   */
  pathsOf(commit: string): string[] {
    const dir = this.snapshot(commit);
    if (!existsSync(dir)) return [];
    return attempt(dir, () => readdirSync(dir, { recursive: true }) as string[])
      .filter((path) => statSync(join(dir, path), { throwIfNoEntry: false })?.isFile() === true)
      .map((path) => path.split(sep).join('/'));
  }

  /** Makes a blob that is there visible as a file of a snapshot. */
  show(commit: string, path: string, digest: string): void {
    const target = join(this.snapshot(commit), ...path.split('/'));
    attempt(target, () => {
      mkdirSync(dirname(target), { recursive: true });
      if (existsSync(target)) return;
      try {
        symlinkSync(relative(dirname(target), this.blob(digest)), target);
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        if (code === 'EEXIST') return;
        // Some systems and disks have no links, or not for everybody.
        if (code !== 'EPERM' && code !== 'ENOSYS' && code !== 'ENOTSUP') throw error;
        linkOrCopy(this.blob(digest), target);
      }
    });
  }

  setRevision(revision: string, commit: string): void {
    if (COMMIT.test(revision)) return;
    const path = join(this.dir, 'refs', ...revision.split('/'));
    attempt(path, () => mkdirSync(dirname(path), { recursive: true }));
    replaceFile(path, Buffer.from(commit));
  }
}

function linkOrCopy(from: string, to: string): void {
  try {
    linkSync(from, to);
  } catch {
    copyFileSync(from, to);
  }
}

export interface Cached {
  /** What loadModel takes: a GGUF file, or a folder. */
  readonly path: string;
  /** Files of the model that are not there; empty: it can be loaded. */
  readonly missing: readonly string[];
}

/** A model in the cache; null where nothing of this revision is. Nothing is asked of the network. */
export function findCached(cacheDir: string, { repo, revision, file }: HubName): Cached | null {
  const cached = new CachedRepository(cacheDir, repo);
  const commit = cached.commitOf(revision);
  if (commit === null) return null;
  const paths = cached.pathsOf(commit);
  const choice = choiceIn(repo, paths, file);
  const dir = cached.snapshot(commit);
  if (choice === null) return { path: dir, missing: [file ?? 'a model'] };
  if (choice.kind === 'gguf') return { path: join(dir, ...choice.file.split('/')), missing: [] };
  if (!choice.weights.endsWith('.index.json')) return { path: dir, missing: [] };
  return { path: dir, missing: shardsOf(join(dir, choice.weights)).filter((shard) => !paths.includes(shard)) };
}

/** Part of a repository may be here, so that what cannot be chosen may only be missing. */
function choiceIn(repo: string, paths: readonly string[], file: string | null): Choice | null {
  try {
    return chooseFiles(repo, paths, file);
  } catch (error) {
    if (error instanceof KvError && error.code === 'bad-argument') throw error;
    return null;
  }
}
