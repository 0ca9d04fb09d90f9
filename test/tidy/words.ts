/** Words that have no place in what is committed. */
import { only } from './source.ts';

export interface Finding {
  readonly line: number;
  readonly what: string;
}

function findings(text: string, pattern: RegExp, what: (match: string) => string): Finding[] {
  return [...text.matchAll(pattern)].map((match) => ({
    line: text.slice(0, match.index).split('\n').length,
    what: what(match[0].trim()),
  }));
}

/** Reminders: finished or filed, not left in the source. */
export const reminders = (text: string): Finding[] =>
  findings(text, /\b(?:FIXME|TODO|XXX|HACK)\b/g, (word) => `left-over ${word}`);

/** Printing belongs to the command line; a library returns or throws. */
export const prints = (source: string): Finding[] =>
  findings(
    only(source, 'code'),
    /\bconsole\s*\.\s*\w+|\bprocess\s*\.\s*std(?:out|err)\b/g,
    (call) => `${call} in library code`,
  );

/** Settings enter through options. */
export const readsEnvironment = (source: string): Finding[] =>
  findings(
    only(source, 'code'),
    /\bprocess\s*\.\s*env\b/g,
    () => 'reads the environment; settings enter through options',
  );

/** Folders of one machine. */
export const machinePaths = (text: string): Finding[] =>
  findings(
    text,
    /(?<![\w.~/:-])\/(?:work|root|home|Users|tmp|var\/tmp)(?:\/[\w.@-]*|(?=['"`\s]))/g,
    (path) => `path of one machine: ${path}`,
  );

/**
 * Package registries are reached through their clients, by package name; a lockfile or page that names a host ties us
 * to it.
 */
export const registryHosts = (text: string): Finding[] =>
  findings(
    text,
    /\b(?:registry|files|repo1?|static|index|proxy)\.[a-z0-9-]*(?:npm|yarn|python|pypi|maven|crates|golang)[a-z0-9-]*\.[a-z]{2,}\b|\b(?:pypi|npmjs|crates|pythonhosted)\.(?:org|com|io)\b/gi,
    (host) => `registry host ${host}`,
  );

/**
 * As wide as the formatter makes code. Texts may be wider: a message is one text, which people search for as they read
 * it.
 */
export const COLUMNS_MAX = 120;

/** Comments that are wider than code. A row of a table is one line however wide it is. */
export const wideComments = (text: string): Finding[] =>
  text.split('\n').flatMap((line, index) => {
    const isComment = /^\s*(\/\/|\/\*\*|\* )/.test(line) && !/^\s*(\/\/|\*) ?\|.*\|\s*$/.test(line);
    return isComment && [...line].length > COLUMNS_MAX
      ? [{ line: index + 1, what: `a comment of ${[...line].length} columns, at most ${COLUMNS_MAX}` }]
      : [];
  });
