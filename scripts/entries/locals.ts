/** Names for the objects on the way to some values, so that generated code looks each up once. */

const capital = (name: string): string => name[0]!.toUpperCase() + name.slice(1);

/**
 * Collects paths that begin with a name: `body.decision.layer` is `inDecision.layer`, behind `const inDecision =
 * body.decision;`.
 */
export class Locals {
  readonly #names = new Map<string, string>();
  /** Declarations, in an order in which each builds on those before. */
  readonly lines: string[] = [];

  /** An expression for the value under a path. */
  shorter(path: string): string {
    const at = path.lastIndexOf('.');
    const holder = path.slice(0, at);
    return holder.includes('.') ? `${this.#local(holder)}.${path.slice(at + 1)}` : path;
  }

  #local(path: string): string {
    const known = this.#names.get(path);
    if (known !== undefined) return known;
    const name = `in${path.split('.').slice(1).map(capital).join('')}`;
    const value = this.shorter(path);
    this.#names.set(path, name);
    this.lines.push(`const ${name} = ${value};`);
    return name;
  }
}
