import { readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Programs shown in a document: fenced ts blocks whose first line is `// example: NAME`. */
export interface Example {
  readonly name: string;
  readonly source: string;
}

export function examplesIn(markdown: string): Example[] {
  const found: Example[] = [];
  for (const match of markdown.matchAll(/^```ts\r?\n([\s\S]*?)^```/gm)) {
    const name = /^\/\/ example: ([\w-]+)\s*$/m.exec(match[1]!.split('\n')[0]!)?.[1];
    if (name !== undefined) found.push({ name, source: match[1]! });
  }
  return found;
}

/** Documents whose programs are run and compiled. */
const DOCUMENTS = [
  'README.md',
  'docs/guide.md',
  'docs/library.md',
  'docs/openai.md',
  'docs/serve.md',
  'policy/README.md',
  'witness/README.md',
];

export const examplesOf = (root: string): Example[] =>
  DOCUMENTS.flatMap((path) => examplesIn(readFileSync(join(root, path), 'utf8')));
