// Do the tidy rules find what they look for, and leave the rest in peace? Each rule is given small texts of both kinds.
import { describe, expect, test } from 'vitest';
import { expand, pathIsThere, pathsIn, titlesOf } from './documents.ts';
import { walk } from './files.ts';
import { importProblem, labProblem, layerFaults, loadedAtOnce, packageProblem, unreached } from './rooms.ts';
import { type Import, importsOf, only } from './source.ts';
import { propertyProblems, testFileProblems } from './suites.ts';
import { machinePaths, prints, readsEnvironment, registryHosts, reminders, wideComments } from './words.ts';

const value = (specifier: string): Import => ({ specifier, line: 1, kind: 'value' });

describe('reading TypeScript', () => {
  test('code, comments and text are told apart', () => {
    const hole = '$' + '{';
    const source = `const a = 'x // y'; // z\nconst r = /['"\`/]/g; /* w */ const t = \`p ${hole}b + \`q\`} /* r */\`;`;
    const squeezed = (...kinds: Parameters<typeof only>[1][]): string =>
      only(source, ...kinds)
        .replace(/ +/g, ' ')
        .trim();
    expect(squeezed('code')).toBe(`const a = ' '; \nconst r = / /g; const t = \` ${hole}b + \` \`} \`;`);
    expect(squeezed('comment').split(/\s*\n\s*/)).toEqual(['// z', '/* w */']);
    expect(squeezed('text').split(/\s*\n\s*/)).toEqual(['x // y', `['"\`/] p q /* r */`]);
  });

  test('a division is no regular expression', () => {
    expect(only('const a = b / c; // "\nconst d = (e) / f / g;', 'code')).toContain('(e) / f / g');
  });

  test('every way to name a module is found, and nothing in comments', () => {
    const source = `import a from './a.ts';
import type { B } from "./b.ts";
import { type C, d } from './c.ts'; // import x from './no.ts'
import './e.ts';
export * from './f.ts';
export type { G } from './g.ts';
const h = await import('./h.ts');
const w = new Worker(new URL('./w.ts', import.meta.url));
const text = "import z from './not-this.ts'";
import {
  i,
} from './i.ts';
export const from = 'nowhere';`;
    expect(
      importsOf(source)
        .map(({ specifier, kind }) => `${kind} ${specifier}`)
        .sort(),
    ).toEqual([
      'dynamic ./h.ts',
      'type ./b.ts',
      'type ./g.ts',
      'url ./w.ts',
      'value ./a.ts',
      'value ./c.ts',
      'value ./e.ts',
      'value ./f.ts',
      'value ./i.ts',
    ]);
    expect(importsOf(source).find((one) => one.specifier === './c.ts')!.line).toBe(3);
  });
});

describe('rooms', () => {
  test.each([
    ['policy/types.ts', '../native/index.ts'],
    ['policy/policies/price.ts', '../../native/index.ts'],
    ['policy/policies/price.ts', '../types.ts'],
    ['engine/cli/main.ts', '../../witness/index.ts'],
    ['engine/cli/serve.ts', '../serve/server.ts'],
    ['engine/transformer/sampling/sampler.ts', '../grammar/constraint.ts'],
    ['engine/cache/governed.ts', '../metrics/meter.ts'],
    ['engine/index.ts', './cli/package.ts'],
    ['engine/session/park/park.ts', '../session.ts'],
    ['witness/writer.ts', './walk.ts'],
    ['witness/report/html.ts', './page/data.ts'],
    ['memory/sql/client.ts', '../../migrations/schema.ts'],
    ['witness/index.ts', 'zod'],
    ['test/unit/x.test.ts', '../../native/load.ts'],
  ])('%s may import %s', (file, specifier) => {
    expect(importProblem(file, value(specifier))).toBeNull();
  });

  test.each([
    ['native/load.ts', '../policy/index.ts', 'leftwards'],
    ['witness/audit.ts', '../engine/index.ts', 'leftwards'],
    ['engine/cache/step.ts', '../../native/load.ts', 'index.ts'],
    ['engine/cache/step.ts', '../../migrations/schema.ts', 'only memory/ and witness/'],
    ['migrations/schema.ts', '../native/index.ts', 'leaf'],
    ['engine/cache/step.ts', '../../test/tools.ts', 'no room'],
    ['engine/cache/step.ts', '../../../elsewhere/x.ts', 'leaves the repository'],
    ['engine/transformer/load.ts', '../cli/package.ts', 'engine/transformer/ imports nothing else'],
    ['engine/transformer/load.ts', '../session/session.ts', 'engine/transformer/ imports nothing else'],
    ['engine/transformer/load.ts', './sampling/sampler.ts', 'only families, hub, template of its folder, not sampling'],
    ['engine/transformer/sampling/sampler.ts', '../runtime/runtime.ts', 'imports only the folder itself, grammar'],
    ['engine/cache/governed.ts', '../session/session.ts', 'not session'],
    ['engine/session/session.ts', '../cli/package.ts', 'not cli'],
    ['engine/session/session.ts', './chat/answering.ts', 'not chat'],
    ['engine/cache/governed.ts', '../serve/server.ts', 'not serve'],
    ['engine/elsewhere.ts', './cache/step.ts', 'in no folder that is known'],
    ['witness/walk.ts', './writer.ts', 'walk (reading) imports writer of a later layer (writing)'],
    ['witness/report/page/map.ts', '../html.ts', 'witness/report/page imports nothing else'],
    ['witness/elsewhere.ts', './walk.ts', 'in no layer'],
  ])('%s may not import %s', (file, specifier, why) => {
    expect(importProblem(file, value(specifier))).toContain(why);
    // A type is a dependency of the mind, and counts.
    expect(importProblem(file, { ...value(specifier), kind: 'type' })).toContain(why);
  });

  test('a layered folder has no module but those of its table, and each of them', () => {
    const all = walk().filter((path) => path.startsWith('witness/'));
    expect(layerFaults('witness', all)).toEqual([]);
    expect(layerFaults('witness', [...all, 'witness/new.ts'])).toEqual(['witness/new is in no layer']);
    expect(
      layerFaults(
        'witness',
        all.filter((path) => path !== 'witness/walk.ts'),
      ),
    ).toEqual(['no witness/walk']);
  });

  test('the lab: what is published imports the product by its door, itself, Node and its own dependencies', () => {
    const problem = (specifier: string): string | null =>
      labProblem('lab/methods/kvquant.ts', value(specifier), ['zod']);
    expect(['palimpsest/lab', './paged.ts', 'node:fs', 'zod'].map(problem)).toEqual([null, null, null, null]);
    expect(problem('palimpsest')).toContain('palimpsest is not among the dependencies');
    expect(problem('xstate')).toContain('xstate is not among the dependencies');
    expect(problem('../../native/index.ts')).toContain('not native/index.ts');
    expect(problem('../evaluate/score.ts')).toContain('not lab/evaluate/score.ts');
  });

  test('modules: those loaded at once are those that no import() stands before', () => {
    const found: Readonly<Record<string, Import[]>> = {
      'a/index.ts': [
        value('./b.ts'),
        { ...value('./late.ts'), kind: 'dynamic' },
        { ...value('./type.ts'), kind: 'type' },
      ],
      'a/b.ts': [value('../c/index.ts'), value('zod')],
      'a/late.ts': [value('./later.ts')],
    };
    expect([...loadedAtOnce(['a/index.ts'], (file) => found[file] ?? [])]).toEqual([
      'a/index.ts',
      'a/b.ts',
      'c/index.ts',
    ]);
  });

  test('packages: dependencies freely, optional peers with care, others never', () => {
    const manifest = {
      dependencies: { zod: '4', '@a/b': '1' },
      peerDependencies: { runtime: '1' },
      optionalDependencies: { compiled: '1' },
    };
    expect(packageProblem(value('zod/mini'), manifest)).toBeNull();
    expect(packageProblem(value('@a/b/deep'), manifest)).toBeNull();
    expect(packageProblem(value('node:fs'), manifest)).toBeNull();
    expect(packageProblem(value('runtime'), manifest)).toContain('optional');
    expect(packageProblem(value('compiled'), manifest)).toContain('optional');
    expect(packageProblem({ ...value('compiled'), kind: 'dynamic' }, manifest)).toBeNull();
    expect(packageProblem({ ...value('runtime'), kind: 'type' }, manifest)).toBeNull();
    expect(packageProblem({ ...value('runtime'), kind: 'dynamic' }, manifest)).toBeNull();
    expect(packageProblem({ ...value('vitest'), kind: 'type' }, manifest)).toContain('vitest');
  });

  test('a module that only a dead module imports is dead too', () => {
    const edges = new Map([
      ['a', ['b']],
      ['b', ['a']],
      ['c', ['d']],
    ]);
    expect(unreached(['a', 'b', 'c', 'd'], ['a'], edges)).toEqual(['c', 'd']);
  });
});

describe('documents', () => {
  const files = [
    'native/format.ts',
    'native/README.md',
    'policy/policies/price.ts',
    'README.md',
    'test/suite/codec.ts',
    'test/suite/store.ts',
  ];
  const top = ['native', 'policy', 'test'];

  test('titles in code blocks are no titles', () => {
    expect(titlesOf('# One\n\n```sh\n# not a title\n```\n## Two\n')).toEqual(['One']);
    expect(titlesOf('# One\n# Two\n')).toEqual(['One', 'Two']);
  });

  test('paths are told from other words in backticks', () => {
    const text =
      'See `native/format.ts`, `npm test`, `a/b`, `rot4:rot2`, `x.ts`, [the page](../README.md), [the web](https://x.org/a.md), `~/.cache/x.json`.';
    expect(pathsIn(text, top).map(({ path }) => path)).toEqual(['native/format.ts', 'x.ts', '../README.md']);
  });

  test('a path is looked for from the document and from the root', () => {
    expect(pathIsThere('format.ts', 'native/README.md', files)).toBe(true);
    expect(pathIsThere('price.ts', 'policy/README.md', files)).toBe(true);
    expect(pathIsThere('price.ts', 'native/README.md', files)).toBe(false);
    expect(pathIsThere('gone.ts', 'README.md', files)).toBe(false);
    expect(pathIsThere('native/format.ts', 'policy/README.md', files)).toBe(true);
    expect(pathIsThere('native/', 'README.md', files)).toBe(true);
    expect(pathIsThere('native/gone.ts', 'README.md', files)).toBe(false);
    expect(pathIsThere('../README.md', 'native/README.md', files)).toBe(true);
    expect(pathIsThere('dist/engine/index.js', 'README.md', files)).toBe(true);
  });

  test('braces, stars and placeholders', () => {
    expect(expand('a/{b,c}.ts')).toEqual(['a/b.ts', 'a/c.ts']);
    expect(pathIsThere('test/suite/{codec,store}.ts', 'README.md', files)).toBe(true);
    expect(pathIsThere('test/suite/{codec,index}.ts', 'README.md', files)).toBe(false);
    expect(pathIsThere('test/suite/*.ts', 'README.md', files)).toBe(true);
    expect(pathIsThere('test/gone/*.ts', 'README.md', files)).toBe(false);
    expect(pathIsThere('policy/policies/<name>.ts', 'README.md', files)).toBe(true);
    expect(pathIsThere('policy/rules/<name>.ts', 'README.md', files)).toBe(false);
  });
});

describe('words', () => {
  test('comments wider than code', () => {
    const wide = 'word '.repeat(25);
    expect(wideComments(`let a = 1;\n  // ${wide}\n  /** ${wide} */\n   * ${wide}`).map(({ line }) => line)).toEqual([
      2, 3, 4,
    ]);
    expect(wideComments(`let a = '${wide}';\n// | ${wide} |\n// short\n  a *= b;`)).toEqual([]);
  });

  test('reminders', () => {
    expect(reminders('// TO' + 'DO: later')).toHaveLength(1);
    expect(reminders('the todo list, an XXXL shirt')).toEqual([]);
  });

  test('printing and reading the environment, in code only', () => {
    expect(prints("console.log('x')")).toHaveLength(1);
    expect(prints('process.stdout.write(x)')).toHaveLength(1);
    expect(prints("// console.log\nconst a = 'console.log';")).toEqual([]);
    expect(readsEnvironment('const a = process.env.HOME')).toHaveLength(1);
    expect(readsEnvironment('// process.env')).toEqual([]);
  });

  test('folders of one machine', () => {
    for (const path of ['/root/x', "'/tmp/a'", '`/home/me/a`', '(/work/main)'])
      expect(machinePaths(path), path).toHaveLength(1);
    for (const path of ['src/work/x', './tmp/a', 'https://x.org/home/a', 'time/work ratio', '~/tmp/x'])
      expect(machinePaths(path), path).toEqual([]);
  });

  test('registry hosts', () => {
    for (const host of [
      'registry.npm' + 'js.org',
      'py' + 'pi.org',
      'files.python' + 'hosted.org',
      'proxy.gol' + 'ang.org',
    ]) {
      expect(registryHosts(`from https://${host}/x`), host).not.toEqual([]);
    }
    expect(registryHosts('npm, pip, registry of generators, arxiv.org, index.ts')).toEqual([]);
  });
});

describe('test files', () => {
  const fine = "// Asks whether one is one.\ntest('one', () => { expect(1).toBe(1); });";
  const problems = (source: string): string[] => testFileProblems(source).map(({ what }) => what);

  test('a plain one is fine', () => {
    expect(problems(fine)).toEqual([]);
    expect(problems("// Every index keeps the contract.\nindexSuite('exact', () => new ExactIndex());")).toEqual([]);
  });

  test('no sentence, no tests, nothing expected', () => {
    expect(problems("test('one', () => { expect(1).toBe(1); });")).toHaveLength(1);
    expect(problems('// A sentence.\nconst x = expect;')).toHaveLength(1);
    expect(problems("// A sentence.\ntest('one', () => {});")).toHaveLength(1);
  });

  test('left-behind marks', () => {
    expect(problems(fine.replace("test('one'", "test.only('one'"))).toHaveLength(1);
    expect(problems(fine.replace("test('one'", "test.skip('one'"))).toHaveLength(1);
    expect(problems(`${fine}\ntest.todo('two');`)).toHaveLength(1);
    expect(problems(`${fine}\n// test.only('x')`)).toEqual([]);
  });

  test('a skip says why', () => {
    expect(problems(fine.replace("test('one'", "test.skipIf(!url)('one (needs a database URL)'"))).toEqual([]);
    expect(problems(fine.replace("test('one'", "test.skipIf(!url)('one'"))).toHaveLength(1);
    expect(problems(fine.replace('expect(1)', "context.skip('no database here'); expect(1)"))).toEqual([]);
    expect(problems(fine.replace('expect(1)', "context.skip(!url, 'no database here'); expect(1)"))).toEqual([]);
    expect(problems(fine.replace('expect(1)', 'context.skip(); expect(1)'))).toHaveLength(1);
    expect(problems(fine.replace('expect(1)', 'context.skip(!url); expect(1)'))).toHaveLength(1);
  });
});

describe('numbered properties', () => {
  const document = '| T1 | grids nest | `a/{b,c}.test.ts` |\n| T2 | sums are one | `d.test.ts`, `a/b.test.ts` |\n';
  const files = { 'a/b.test.ts': 'nests (T1), one (T2)', 'a/c.test.ts': 'nests (T1)', 'd.test.ts': 'is one (T2)' };
  const problems = (changes: Readonly<Record<string, string>>): string[] =>
    propertyProblems(document, new Map(Object.entries({ ...files, ...changes })));

  test('have a row that names the files that ask for them, and no others', () => {
    expect(problems({})).toEqual([]);
    expect(problems({ 'd.test.ts': 'thread T2' })).toEqual(['T2: d.test.ts does not name it']);
    expect(problems({ 'e.test.ts': 'here too (T1)' })).toEqual(['e.test.ts asks for T1, and its row does not name it']);
    expect(problems({ 'e.test.ts': 'another (T27)' })).toEqual(['e.test.ts asks for T27, and it has no row']);
  });
});
