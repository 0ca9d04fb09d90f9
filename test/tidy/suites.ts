/** What a test file must be: says what it tries, tests something, leaves nothing out in silence. */
import { only } from './source.ts';
import type { Finding } from './words.ts';

const at = (text: string, index: number): number => text.slice(0, index).split('\n').length;

export function testFileProblems(source: string): Finding[] {
  const code = only(source, 'code');
  const full = only(source, 'code', 'text');
  const found: Finding[] = [];
  if (!/^\s*(?:#![^\n]*\n)?\s*(?:\/\/|\/\*)/.test(source)) {
    found.push({ line: 1, what: 'opens without a sentence that says what it tries and how' });
  }
  // A call of test or it, or of a suite that holds them.
  if (!/\b(?:test|it)\b(?:\.\w+)*\s*\(|\b\w*[sS]uite\s*\(/.test(code))
    found.push({ line: 1, what: 'test file without tests' });
  if (!/\b(?:expect|assert|fc)\b|\b\w*[sS]uite\s*\(|\b(?:must|check)\w*\s*\(/.test(code))
    found.push({ line: 1, what: 'nothing is expected of anything' });
  for (const match of code.matchAll(/\b(?:test|it|describe|suite)\s*\.(?:\w+\.)*(only|todo|fails)\b/g)) {
    found.push({ line: at(code, match.index), what: `.${match[1]} left behind` });
  }
  for (const match of code.matchAll(/\b(?:test|it|describe|suite)\s*\.(?:\w+\.)*skip\b/g)) {
    found.push({
      line: at(code, match.index),
      what: 'skipped for good: remove it, or skip when something is missing, with the reason',
    });
  }
  for (const match of code.matchAll(/\.(?:skipIf|runIf)\s*\(/g)) {
    // The title follows the condition; it says in brackets what is needed, and the reporter repeats that.
    const title = /\)\s*\(\s*(?:'([^'\n]*)|"([^"\n]*)|`([^`]*))/.exec(full.slice(match.index, match.index + 600));
    const words = title?.[1] ?? title?.[2] ?? title?.[3] ?? '';
    if (!/\([^()]+\)/.test(words))
      found.push({
        line: at(code, match.index),
        what: 'conditional skip whose title does not say the reason in brackets, e.g. (needs X)',
      });
  }
  for (const match of code.matchAll(
    /\b(?:context|ctx|t|task)\s*\.\s*skip\s*\(\s*(?:\)|(?:true|false|[\w!.]+)\s*\))/g,
  )) {
    if (/skip\s*\(\s*(?:reason|why|note)\b/.test(match[0])) continue;
    found.push({ line: at(code, match.index), what: 'skip() without a reason' });
  }
  return found;
}

/** Numbers of properties that a text names where a sentence or title says what is asked, in brackets. */
const numbersIn = (text: string): string[] => [
  ...new Set([...text.matchAll(/\((T[1-9]\d?)\)/g)].map(([, number]) => number!)),
];

/** Where the table of properties and the test files disagree. `files`: the text of each test file. → a sentence each */
export function propertyProblems(document: string, files: ReadonlyMap<string, string>): string[] {
  const told = new Map(
    [...document.matchAll(/^\| (T\d+) \|.*\| ([^|]*) \|$/gm)].map(([, number, paths]) => [
      number!,
      [...paths!.matchAll(/`([^`{]*)(?:\{([^}]*)\})?([^`]*)`/g)].flatMap(([, from, names, to]) =>
        names === undefined ? [`${from}${to}`] : names.split(',').map((name) => `${from}${name}${to}`),
      ),
    ]),
  );
  const asked = [...files].flatMap(([path, text]) => numbersIn(text).map((number) => [number, path] as const));
  return [
    ...asked.flatMap(([number, path]) => {
      if (told.get(number)?.includes(path) === true) return [];
      return [`${path} asks for ${number}, and ${told.has(number) ? 'its row does not name it' : 'it has no row'}`];
    }),
    ...[...told].flatMap(([number, paths]) =>
      paths.flatMap((path) =>
        asked.some(([one, other]) => one === number && other === path) ? [] : [`${number}: ${path} does not name it`],
      ),
    ),
  ];
}
