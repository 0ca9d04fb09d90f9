// Grammars are compiled beside the model: one that takes long holds up no other session, is given up as soon as nobody
// wants it, and is refused by name where it takes longer than the bound. Its thread is ended then, and no other.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, type Engine } from '../../../../../engine/index.ts';
import { CompiledGrammars } from '../../../../../engine/transformer/grammar/compiled.ts';
import { allows } from '../../../../../engine/transformer/grammar/constraint.ts';
import { Grammars } from '../../../../../engine/transformer/grammar/grammars.ts';
import { openLibrary } from '../../../../../engine/transformer/grammar/library.ts';
import { vocabularyOf } from '../../../../../engine/transformer/grammar/vocabulary.ts';
import { Workshop } from '../../../../../engine/transformer/grammar/workshop.ts';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import type { LoadedModel } from '../../../../../engine/transformer/types.ts';
import { KvError } from '../../../../../native/index.ts';
import { refused } from '../../../../refusal.ts';
import { MODEL } from '../../on-reference.ts';

/** Classes of characters, of which 5,000 are let through and take eight seconds for the reference model. */
const classes = (count: number): { readonly gbnf: string } => ({
  gbnf: `root ::= ${Array.from({ length: count }, (_, i) => `[a-z${i % 10}]`).join(' ')}`,
});
const SLOW = classes(4900);
const QUICK = { gbnf: 'root ::= [a-z]+ "."' };

describe('a slow grammar of one session', () => {
  let engine: Engine;
  beforeAll(async () => {
    engine = await createEngine({ model: MODEL, threads: 1, stateDir: null });
  });
  afterAll(() => engine.close());

  it('lets others write, with grammars and without, and is given up at once', async () => {
    const [slow, free, quick] = [await engine.openSession(), await engine.openSession(), await engine.openSession()];
    const told: string[] = [];
    const abort = new AbortController();
    const waiting = slow
      .generate('Once', { grammar: SLOW, maxTokens: 8, signal: abort.signal, onProgress: () => told.push('slow') })
      .result.finally(() => told.push('slow'));
    const ended = refused(waiting);
    const written = await free.generate('Once upon a time', { maxTokens: 40, temperature: 0 }).result;
    const followed = await quick.generate('Once', { grammar: QUICK, maxTokens: 8, seed: 1 }).result;
    expect([written.tokens, /^[a-z]+\.?$/.test(followed.text), told]).toEqual([40, true, []]);
    abort.abort();
    expect((await ended).code).toBe('aborted');
    expect((await slow.generate('Once', { grammar: QUICK, maxTokens: 8, seed: 1 }).result).text).toBe(followed.text);
  });

  it('does not keep an engine from being closed', async () => {
    const other = await createEngine({ model: MODEL, threads: 1, stateDir: null });
    const session = await other.openSession();
    const ended = refused(session.generate('Once', { grammar: SLOW, maxTokens: 8 }).result);
    await other.close();
    expect((await ended).code).toBe('closed');
  });
});

describe('threads of grammars', () => {
  let model: LoadedModel;
  beforeAll(async () => {
    model = await loadModel(MODEL, {});
  });
  afterAll(() => model.weights.close());

  const idOf = (letter: string): number => model.tokenizer.encode(letter).at(-1)!;

  it('refuse by name what takes longer than the bound, and what others follow goes on', async () => {
    let bound = 60_000;
    const grammars = Grammars.of(model, {
      get compileMsMax() {
        return bound;
      },
    });
    const before = (await grammars.open(QUICK))!;
    bound = 1;
    const error = await refused(grammars.open(SLOW));
    expect([error.code, error.message]).toEqual([
      'unsupported',
      'the grammar takes longer than 0.001 s to be compiled for this vocabulary',
    ]);
    const begins = allows(before.mask, idOf('.'));
    await before.accept(idOf('b'));
    expect([begins, allows(before.mask, idOf('.'))]).toEqual([false, true]);
    before.close();
    await grammars.close();
  });

  it('refuse what takes more memory than the bound, and then follow the next', async () => {
    const name = '@mlc-ai/web-xgrammar';
    const grammars = new CompiledGrammars(await vocabularyOf(model), [], () => openLibrary(name, 18 << 20));
    const counts = Array.from({ length: 20 }, () => '[^a-z]{1,99}').join(' ');
    const error = await refused(grammars.compile('counts', { gbnf: `root ::= ${counts}` }));
    expect([error.code, error.message]).toEqual([
      'unsupported',
      'the grammar is too large or nests too deeply to be compiled',
    ]);
    await grammars.compile('quick', QUICK);
    expect([grammars.keeps('counts'), grammars.keeps('quick')]).toEqual([false, true]);
  });

  it('compile once what several ask for, and go on where only one of them leaves', async () => {
    const grammars = Grammars.of(model);
    const abort = new AbortController();
    const left = refused(grammars.open(classes(100), abort.signal));
    const stays = grammars.open(classes(100));
    abort.abort();
    expect((await left).code).toBe('aborted');
    const constraint = (await stays)!;
    expect(allows(constraint.mask, idOf('b'))).toBe(true);
    constraint.close();
    await grammars.close();
    expect((await refused(grammars.open(QUICK))).code).toBe('closed');
  });

  it('take one more grammar when an answer ends, where all are in use', async () => {
    const grammars = Grammars.of(model, { threadsMax: 2 });
    const open = await Promise.all(Array.from({ length: 2 }, (_, i) => grammars.open({ gbnf: `root ::= "${i}"` })));
    let isThere = false;
    const third = grammars.open(QUICK).then((constraint) => {
      isThere = true;
      return constraint!;
    });
    // What is compiled can be followed once more.
    (await grammars.open({ gbnf: 'root ::= "1"' }))!.close();
    expect(isThere).toBe(false);
    open[0]!.close();
    (await third).close();
    await grammars.close();
  });

  it('that end give who follows a grammar there an error that says so', async () => {
    const workshop = new Workshop({ vocabulary: await vocabularyOf(model), library: '@mlc-ai/web-xgrammar' });
    const asked = { source: QUICK, marks: [], key: 'a' };
    await workshop.compile(asked, 60_000);
    const { matched } = (await workshop.open(asked, () => {}))!;
    await workshop.end();
    const error = await refused(matched.accept(idOf('b')));
    expect([error.code, error.message]).toEqual(['closed', 'the thread that followed the grammar has ended']);
    expect(error).toBeInstanceOf(KvError);
  });
});
