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
