/**
 * The rules of a grammar that is made from schemas. Written as XGrammar and llama.cpp read them: `name ::= expression`.
 */
import { KvError } from '../../../native/index.ts';
import { JSON_NOTATION, type Notation } from './notation.ts';

const FORMAT_RULES = {
  // Not bounded in length: counts are what takes long to compile.
  label: '[a-z0-9]+ ("-" [a-z0-9]+)*',
  host: 'label ("." label){1,3}',
  octet: '"25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9]? [0-9]',
  span: '[0-9]{1,4}',
  dates: 'span "Y" (span "M" (span "D")?)? | span "M" (span "D")? | span "D"',
  times: 'span "H" (span "M" (span "S")?)? | span "M" (span "S")? | span "S"',
  leap: '([0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00") "-02-29"',
  // No day that a month lacks.
  day: '([0-9]{4}) "-" (("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8]) | ("0" [13-9] | "1" [0-2]) "-" ("29" | "30") | ("0" [13578] | "1" [02]) "-31") | leap',
  time: '("0" [0-9] | "1" [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [-+] ("0" [0-9] | "1" [0-3]) ":" [0-5] [0-9])',
} as const;

/** Texts of the formats of JSON Schema, or plain ones among them. */
export const FORMATS: Readonly<Record<string, string>> = {
  date: 'day',
  time: 'time',
  'date-time': 'day "T" time',
  duration: '"P" (span "W" | dates ("T" times)? | "T" times)',
  email: '[a-z0-9]+ ([._-] [a-z0-9]+)* "@" host',
  hostname: 'host',
  ipv4: 'octet "." octet "." octet "." octet',
  ipv6: 'hex{1,4} (":" hex{1,4}){7}',
  uuid: 'hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}',
  uri: '("https" | "http" | "ftp") "://" host ("/" [a-zA-Z0-9._~-]*)* ("?" [a-zA-Z0-9._~=&-]*)?',
};

const TERMINAL = /"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]/gsu;

/**
 * The most texts of one grammar; a class of characters counts as several. A thousand classes take two seconds to
 * compile for a vocabulary of 50,000 tokens, and so do five thousand texts.
 */
const WEIGHT_MAX = 20_000;
const CLASS_WEIGHT = 4;

/**
 * XGrammar 0.1.27 makes an automaton of each rule and merges states of it that are not the same, where two ways leave
 * one state alike: `[37]* [37] "."` then takes a point alone. So each text and class is led by a rule of its own that
 * stands for nothing, and refers to itself, or it would be left out: then no two ways are alike.
 */
export class Apart {
  #count = 0;
  #weight = 0;

  /**
   * Keeps a text or a class from being merged with another; what is repeated stays as it is, since in there the rule
   * would cost much time. Throws 'unsupported' for too many.
   */
  one(terminal: string, behind: string): string {
    this.#weight += terminal.startsWith('[') ? CLASS_WEIGHT : 1;
    if (this.#weight > WEIGHT_MAX)
      throw new KvError('unsupported', 'the grammar has more texts and classes of characters than can be compiled', {
        values: { weightMax: WEIGHT_MAX, classWeight: CLASS_WEIGHT },
        hint: 'fewer alternatives, properties, or bounds of numbers; an enum is cheaper than patterns',
      });
    // Counted characters of several bytes are merged as well.
    const isLoop = /^\s*[*+]/.test(behind) || (/^\s*\{/.test(behind) && !terminal.startsWith('[^'));
    return isLoop ? terminal : `(nothing-${this.#count++} ${terminal})`;
  }

  /** All of an expression. */
  all(body: string): string {
    return body.replace(TERMINAL, (terminal, at: number) => this.one(terminal, body.slice(at + terminal.length)));
  }

  /** The rules that were referred to. */
  get rules(): readonly string[] {
    return Array.from({ length: this.#count }, (_, i) => `nothing-${i} ::= "" | nothing-${i} nothing-${i}`);
  }
}

export class Rules {
  /** How values are written in it. */
  readonly notation: Notation;
  readonly #bodies: string[] = [];
  readonly #plain = new Set<string>();
  readonly #shared = new Map<string, string>();

  constructor(notation: Notation = JSON_NOTATION) {
    this.notation = notation;
  }

  /** A rule of its own. → its name */
  add(body: string): string {
    return this.named(this.reserve(), body);
  }

  /** The same of one whose alternatives begin differently, as namedPlain. */
  addPlain(body: string): string {
    return this.namedPlain(this.reserve(), body);
  }

  /** What is made once and used wherever it is asked for again. key: what it is. */
  shared(key: string, make: () => string): string {
    const made = this.#shared.get(key) ?? this.add(make());
    this.#shared.set(key, made);
    return made;
  }

  /** A name for a rule that comes later, so that others can refer to it before. */
  reserve(): string {
    this.#bodies.push('');
    return `r${this.#bodies.length - 1}`;
  }

  named(name: string, body: string): string {
    this.#bodies[Number(name.slice(1))] = body;
    return name;
  }

  /** The same of one whose alternatives begin differently. */
  namedPlain(name: string, body: string): string {
    this.#plain.add(name);
    return this.named(name, body);
  }

  /** The grammar, with the rules of its notation. */
  grammar(root: string): string {
    const apart = new Apart();
    const own = this.#bodies.map((body, i) => `r${i} ::= ${this.#plain.has(`r${i}`) ? body : apart.all(body)}`);
    const values = Object.entries(this.notation.rules).map(([name, body]) => `${name} ::= ${body}`);
    const formats = Object.entries(FORMAT_RULES).map(([name, body]) => `${name} ::= ${apart.all(body)}`);
    return [`root ::= ${root}`, ...own, ...values, ...formats, ...apart.rules].join('\n');
  }
}
