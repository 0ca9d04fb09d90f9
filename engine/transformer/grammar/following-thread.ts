/** A thread that compiles grammars and follows them: a slow one holds up nobody but who asked for it. */
import { parentPort, workerData } from 'node:worker_threads';
import { type Caller, ThreadServer } from '../../../native/index.ts';
import { CompiledGrammars } from './compiled.ts';
import type { Standing } from './constraint.ts';
import { openLibrary } from './library.ts';
import type { Matching } from './matching.ts';
import type { Source } from './source.ts';
import type { Vocabulary } from './vocabulary.ts';

export interface FollowingThread {
  readonly vocabulary: Vocabulary;
  /** Name of the package of the library. */
  readonly library: string;
}

/** A grammar of a vocabulary with these marks. */
interface Marked {
  readonly marks: readonly number[];
  readonly key: string;
}

/** One text that follows a grammar. */
interface Numbered {
  readonly id: number;
}

function followingCalls({ vocabulary, library }: FollowingThread) {
  const byMarks = new Map<string, CompiledGrammars>();
  const texts = new Map<number, Matching>();
  const grammarsOf = (marks: readonly number[]): CompiledGrammars => {
    const key = marks.join();
    const grammars = byMarks.get(key) ?? new CompiledGrammars(vocabulary, marks, () => openLibrary(library));
    byMarks.set(key, grammars);
    return grammars;
  };
  const text = (id: number): Matching => {
    const found = texts.get(id);
    if (found === undefined) throw new Error('palimpsest internal error: no text of this number follows a grammar');
    return found;
  };
  return {
    compile: ({ marks, key, source }: Marked & { readonly source: Source }): Promise<void> =>
      grammarsOf(marks).compile(key, source),

    /** The beginning of a text; null: the grammar is not here any more. */
    open: async ({ marks, key, id }: Marked & Numbered): Promise<Standing | null> => {
      const grammars = grammarsOf(marks);
      if (!grammars.keeps(key)) return null;
      const matching = await grammars.open(key);
      texts.set(id, matching);
      return matching.standing();
    },

    forget: ({ marks, key }: Marked): void => grammarsOf(marks).forget(key),

    accept: ({ id, token }: Numbered & { readonly token: number }): Promise<Standing> => text(id).accept(token),

    begin: ({ id, beginning }: Numbered & { readonly beginning: string }): Promise<Standing> =>
      text(id).begin(beginning),

    admits: ({ id, beginning }: Numbered & { readonly beginning: string }): boolean => text(id).admits(beginning),

    fulfils: ({ id, answer }: Numbered & { readonly answer: string }): boolean => text(id).fulfils(answer),

    close: ({ id }: Numbered): void => {
      texts.get(id)?.close();
      texts.delete(id);
    },
  } satisfies Record<string, (params: never, caller: Caller<never>) => unknown>;
}

export type FollowingCalls = ReturnType<typeof followingCalls>;

new ThreadServer(parentPort).serve(followingCalls(workerData as FollowingThread));
