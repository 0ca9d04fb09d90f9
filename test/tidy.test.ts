// Is the house in order? Walks every file of the checkout and asks the rules of test/tidy/: who imports whom, whether
// documents name things that exist, whether generated files are fresh, and what has no place in a commit.
// Each check returns its findings as a list, so a failure shows all of them at once.
import { spawnSync } from 'node:child_process';
import { posix } from 'node:path';
import { describe, expect, test } from 'vitest';
import { IN_TURN } from './everywhere/node.ts';
import { ENTRIES, ENVIRONMENT_READERS, MACHINE_PATHS, PRINTERS } from './tidy/allowed.ts';
import { pathIsThere, pathsIn, titlesOf } from './tidy/documents.ts';
import { exists, isCode, isWritten, read, root, walk } from './tidy/files.ts';
import {
  circles,
  importProblem,
  isPublishedLab,
  LAYERED_FOLDERS,
  labProblem,
  layerFaults,
  layerProblem,
  loadedAtOnce,
  packageProblem,
  ROOMS,
  unreached,
} from './tidy/rooms.ts';
import { importsOf, stretches } from './tidy/source.ts';
import { propertyProblems, testFileProblems } from './tidy/suites.ts';
import {
  type Finding,
  machinePaths,
  prints,
  readsEnvironment,
  registryHosts,
  reminders,
  wideComments,
} from './tidy/words.ts';
import { MERGE_FILES, MINUTES, NIGHTLY_FILES } from './tier.ts';
import { APART } from './together.ts';

const files = walk();
const written = files.filter(isWritten);
const code = files.filter(isCode);
const roomSources = code.filter(
  (path) => path.endsWith('.ts') && [...ROOMS, 'migrations'].includes(path.split('/')[0]!),
);
/** The rooms, and the lab, whose modules are as alive as theirs. */
const modules = [...roomSources, ...code.filter((path) => path.startsWith('lab/'))];
const documents = files.filter((path) => path.endsWith('.md') && isWritten(path));

/** Runs a check over files, apart from the allowed ones. → one line per finding, and one per allowance nobody needs. */
function findingsIn(
  paths: readonly string[],
  check: (text: string) => Finding[],
  allowed: Readonly<Record<string, string>> = {},
): string[] {
  const used = new Set<string>();
  const lines: string[] = [];
  for (const path of paths) {
    const found = check(read(path));
    const allowance = Object.keys(allowed).find((key) => path === key || (key.endsWith('/') && path.startsWith(key)));
    if (allowance === undefined) lines.push(...found.map(({ line, what }) => `${path}:${line} ${what}`));
    else if (found.length > 0) used.add(allowance);
  }
  const idle = Object.keys(allowed).filter((key) => !used.has(key));
  return [...lines, ...idle.map((key) => `test/tidy/allowed.ts: nothing in ${key} needs its exception any more`)];
}

describe('rooms', () => {
  test('import only leftwards, and only through the other room’s index.ts', () => {
    const problems = roomSources.flatMap((file) =>
      importsOf(read(file)).flatMap((one) => {
        const problem = importProblem(file, one);
        return problem === null ? [] : [`${file}:${one.line} ${problem}`];
      }),
    );
    expect(problems).toEqual([]);
  });

  test('import only packages that a user of the package gets', () => {
    const manifest = JSON.parse(read('package.json'));
    const early = loadedAtOnce(
      roomSources.filter((file) => file === 'engine/index.ts' || file.startsWith('engine/cli/')),
      (file) => (roomSources.includes(file) ? importsOf(read(file)) : []),
    );
    expect(early.has('witness/index.ts')).toBe(true);
    const problems = roomSources.flatMap((file) =>
      importsOf(read(file)).flatMap((one) => {
        // A module that only import() loads may need an optional package: who loads it can tell that it is missing.
        const problem = packageProblem(early.has(file) ? one : { ...one, kind: 'dynamic' }, manifest);
        return problem === null ? [] : [`${file}:${one.line} ${problem}`];
      }),
    );
    expect(problems).toEqual([]);
  });

  test('have no dead modules: every one is reached from an entry', () => {
    const edges = new Map<string, string[]>();
    // Lists that are generated lead to modules as well.
    for (const file of [...modules, ...files.filter((path) => path.endsWith('.gen.ts'))]) {
      // Workers and the like are named in strings: any text that is the path of a module counts.
      const named = [...stretches(read(file))]
        .filter((s) => s.kind === 'text' && /^[\w./-]+\.[tj]s$/.test(s.text))
        .map((s) => s.text);
      edges.set(
        file,
        [...importsOf(read(file)).map((one) => one.specifier), ...named].map((specifier) =>
          posix.normalize(posix.join(posix.dirname(file), specifier)).replace(/\.js$/, '.ts'),
        ),
      );
    }
    expect(unreached(modules, Object.keys(ENTRIES), edges)).toEqual([]);
  });

  test.each(LAYERED_FOLDERS)(
    '%s/ has each of its modules in one layer, which imports none that come later',
    (folder) => {
      const modulesHere = code.filter((path) => path.startsWith(`${folder}/`) && /\.m?ts$|\.mjs$/.test(path));
      expect(modulesHere.length).toBeGreaterThan(20);
      const problems = modulesHere.flatMap((file) =>
        importsOf(read(file)).flatMap(({ specifier, kind, line }) => {
          const target = posix.normalize(posix.join(posix.dirname(file), specifier));
          if (kind === 'url' || !specifier.startsWith('.') || !target.startsWith(`${folder}/`)) return [];
          const problem = layerProblem(file, target);
          return problem === null ? [] : [`${file}:${line} ${problem}`];
        }),
      );
      expect([...layerFaults(folder, files), ...problems]).toEqual([]);
    },
  );

  test('have no circles: no module imports itself by way of others', () => {
    const edges = new Map(
      modules.map((file) => [
        file,
        importsOf(read(file))
          .filter(({ kind, specifier }) => kind !== 'url' && specifier.startsWith('.'))
          .map(({ specifier }) => posix.normalize(posix.join(posix.dirname(file), specifier)).replace(/\.js$/, '.ts')),
      ]),
    );
    expect(circles(edges)).toEqual([]);
  });

  test('are reached by the modules of palimpsest-lab through palimpsest/lab alone', () => {
    const { dependencies = {} } = JSON.parse(read('lab/package.json')) as { dependencies?: Record<string, string> };
    const published = code.filter(isPublishedLab);
    expect(published.length).toBeGreaterThan(15);
    const problems = published.flatMap((file) =>
      importsOf(read(file)).flatMap((one) => {
        const problem = labProblem(file, one, Object.keys(dependencies));
        return problem === null ? [] : [`${file}:${one.line} ${problem}`];
      }),
    );
    expect(problems).toEqual([]);
  });

  test('leave the geometry of pages to native/geometry.ts', () => {
    const dividing = roomSources.filter((path) => !path.startsWith('native/') && /[%/] PAGE_TOKENS/.test(read(path)));
    expect(dividing).toEqual([]);
  });

  test('have no dead C++: every source is compiled and every header included', () => {
    const sources = code.filter((path) => /^native\/.*\.(cc|h)$/.test(path));
    const included = new Set(
      [...sources, ...files.filter((path) => path.endsWith('.gen.h'))].flatMap((path) =>
        [...read(path).matchAll(/^\s*#include "([^"]+)"/gm)].map((m) => posix.basename(m[1]!)),
      ),
    );
    const build = read('native/binding.gyp');
    // cache/*.cc, log/*.cc and addon*.cc are compiled by pattern. A build with yardsticks includes the header of each
    // family of them.
    const used = (path: string): boolean =>
      path.endsWith('.h')
        ? included.has(posix.basename(path)) ||
          (path.startsWith('native/yardsticks/') && files.includes(path.replace(/h$/, 'ts')))
        : build.includes(posix.basename(path)) || /^native\/(cache\/|log\/|addon)/.test(path);
    expect(sources.length).toBeGreaterThan(5);
    expect(sources.filter((path) => !used(path))).toEqual([]);
  });

  test.each(ROOMS)('%s/ has an index and a page about itself', (room) => {
    expect([`${room}/index.ts`, `${room}/README.md`].filter((path) => !exists(path))).toEqual([]);
  });

  test('do not print, and do not read the environment', () => {
    expect([
      ...findingsIn(roomSources, prints, PRINTERS),
      ...findingsIn(roomSources, readsEnvironment, ENVIRONMENT_READERS),
    ]).toEqual([]);
  });
});

describe('documents', () => {
  test('have one title each', () => {
    expect(documents.filter((path) => titlesOf(read(path)).length !== 1)).toEqual([]);
  });

  test('name only paths that exist', () => {
    const top = [...new Set(files.filter((path) => path.includes('/')).map((path) => path.split('/')[0]!))];
    const missing = documents.flatMap((document) =>
      pathsIn(read(document), top)
        .filter(({ path }) => !pathIsThere(path, document, files))
        .map(({ path, line }) => `${document}:${line} ${path}`),
    );
    expect(missing).toEqual([]);
  });
});

describe('files', () => {
  test('that are generated are fresh', () => {
    const { status, stdout, stderr } = spawnSync(process.execPath, ['scripts/generate.mjs', '--check'], {
      cwd: root,
      encoding: 'utf8',
    });
    expect({ status, output: status === 0 ? '' : `${stdout}${stderr}` }).toEqual({ status: 0, output: '' });
  });

  test('hold no reminders', () => {
    expect(
      findingsIn(
        code.filter((path) => !path.startsWith('test/tidy')),
        reminders,
      ),
    ).toEqual([]);
  });

  test('have comments that are no wider than code', () => {
    expect(findingsIn(code, wideComments)).toEqual([]);
  });

  test('name no folder of one machine and no registry host', () => {
    expect([
      ...findingsIn(written, machinePaths, MACHINE_PATHS),
      ...findingsIn([...written, 'package-lock.json'], registryHosts),
    ]).toEqual([]);
  });

  test('the lockfile ties nobody to a registry', () => {
    const lock = JSON.parse(read('package-lock.json')) as {
      packages: Record<string, { resolved?: string; integrity?: string }>;
    };
    const packages = Object.entries(lock.packages).filter(([path]) => path !== '');
    expect(packages.length).toBeGreaterThan(10);
    expect(packages.filter(([, entry]) => entry.resolved !== undefined).map(([path]) => path)).toEqual([]);
    expect(packages.filter(([, entry]) => entry.integrity === undefined).map(([path]) => path)).toEqual([]);
  });
});

describe('tests', () => {
  test('say what they try, test something, and leave nothing out in silence', () => {
    expect(
      findingsIn(
        files.filter((path) => /^test\/.*\.test\.ts$/.test(path)),
        testFileProblems,
      ),
    ).toEqual([]);
  });

  test('that a tier, an order or a turn names are there', () => {
    const named = [...MERGE_FILES, ...NIGHTLY_FILES.map(([file]) => file), ...MINUTES, ...IN_TURN.flat(), ...APART];
    const isThere = (name: string): boolean =>
      name.includes('*') ? files.some((file) => posix.matchesGlob(file, name)) : files.includes(name);
    expect(named.filter((name) => !isThere(name))).toEqual([]);
    expect(named.length).toBeGreaterThan(50);
  });

  test('that put something in the place of a module have a process of their own', () => {
    // In a process of several files the module may be loaded already, and then nothing takes its place.
    const replacing = files.filter(
      (path) => /^test\/.*\.test\.ts$/.test(path) && /\bvi\.(do)?[mM]ock\(/.test(read(path)),
    );
    const isApart = (path: string): boolean => APART.some((glob) => posix.matchesGlob(path, glob));
    expect(replacing.filter((path) => !isApart(path))).toEqual([]);
    expect(replacing.length).toBeGreaterThan(0);
  });

  test('that ask for a numbered property are those that CONTRIBUTING.md names', () => {
    // Those of the rule itself ask for properties that there are not.
    const asking = files.filter((path) => /^test\/(?!tidy\/).*\.test\.ts$/.test(path));
    const texts = new Map(asking.map((path) => [path, read(path)]));
    expect(propertyProblems(read('CONTRIBUTING.md'), texts)).toEqual([]);
  });
});
