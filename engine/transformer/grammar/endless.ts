/** Rules of a grammar that no finite text fulfils: whoever enters one never comes to an end. */
import { KvError } from '../../../native/index.ts';

/** A name that is defined, comments, texts, classes of characters, counts, names, and each other letter by itself. */
const PART =
  /([\w.-]+)\s*::=|#[^\n]*|"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]|\{\s*(\d*)[^}]*\}|[A-Za-z_][\w.-]*|./gsu;
/** Stands for a text or a class, which always ends. */
const ENDS = -1;

/** A rule, or what is between two brackets: of each alternative the nodes that it cannot do without. */
interface Node {
  readonly alternatives: number[][];
}

class Graph {
  readonly nodes: Node[] = [];
  /** Of rules, by their names. */
  readonly ids = new Map<string, number>();

  constructor(grammar: string) {
    let open: number[] = [];
    const last = (): number[] => this.nodes[open.at(-1)!]!.alternatives.at(-1)!;
    for (const [part, defined, least] of grammar.matchAll(PART)) {
      if (defined !== undefined) {
        open = [this.#idOf(defined)];
        this.nodes[open[0]!]!.alternatives.push([]);
      } else if (open.length === 0 || /^[\s#]/.test(part)) continue;
      else if (part === '(') {
        last().push(this.nodes.length);
        open.push(this.nodes.length);
        this.nodes.push({ alternatives: [[]] });
      } else if (part === ')') open = open.length > 1 ? open.slice(0, -1) : open;
      else if (part === '|') this.nodes[open.at(-1)!]!.alternatives.push([]);
      else if (part === '*' || part === '?' || (least !== undefined && Number(least) === 0)) last().pop();
      else if (part.startsWith('"') || part.startsWith('[')) last().push(ENDS);
      else if (/^[A-Za-z_]/.test(part)) last().push(this.#idOf(part));
    }
  }

  #idOf(name: string): number {
    const id = this.ids.get(name) ?? this.nodes.push({ alternatives: [] }) - 1;
    this.ids.set(name, id);
    return id;
  }

  /** Which nodes a finite text fulfils. Rules that are not defined are left to whoever compiles the grammar. */
  ends(): Uint8Array {
    const ends = new Uint8Array(this.nodes.length);
    const waiting: { readonly of: number; left: number }[][] = this.nodes.map(() => []);
    const found: number[] = [];
    const end = (id: number): void => {
      if (ends[id] === 0) found.push(id);
      ends[id] = 1;
    };
    for (const [id, { alternatives }] of this.nodes.entries()) {
      if (alternatives.length === 0) end(id);
      for (const needed of alternatives) {
        const named = needed.filter((one) => one !== ENDS);
        const alternative = { of: id, left: named.length };
        for (const one of named) waiting[one]!.push(alternative);
        if (named.length === 0) end(id);
      }
    }
    for (let id = found.pop(); id !== undefined; id = found.pop())
      for (const alternative of waiting[id]!) if (--alternative.left === 0) end(alternative.of);
    return ends;
  }
}

/**
 * Refuses a grammar in which a text can come to where it never ends. what: what it is called. Throws 'bad-argument'.
 */
export function checkEnds(grammar: string, what: string): void {
  const graph = new Graph(grammar);
  const ends = graph.ends();
  const root = graph.ids.get('root');
  const met = new Set<number>(root === undefined ? [] : [root]);
  for (const id of met) {
    if (ends[id] === 0) {
      const [name] = [...graph.ids].find(([, one]) => one === id) ?? [];
      throw new KvError('bad-argument', `the ${what} asks for a text that never ends`, {
        values: { ...(what === 'grammar' && { rule: name ?? 'root' }) },
        hint:
          what === 'grammar'
            ? `give the rule ${name ?? 'root'} an alternative that does not come back to it`
            : 'a value that holds one like itself needs a way to hold none: make it optional, or allow null beside it',
      });
    }
    for (const alternative of graph.nodes[id]!.alternatives)
      for (const one of alternative) if (one !== ENDS) met.add(one);
  }
}
