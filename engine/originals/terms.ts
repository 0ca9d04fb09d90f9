/** Turns what was asked of originals into what is effective. */
import { given, KvError, show } from '../../native/index.ts';
import { parseBytes } from '../options/parse-budget.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type { SessionOptions } from '../options/types.ts';
import type { OriginalFiles, OriginalsTerms } from './types.ts';

type Asked = Pick<SessionOptions, 'originals' | 'originalsDir' | 'originalsBytes' | 'originalsFormat' | 'promote'> & {
  readonly stateDir?: string | undefined;
  readonly originalFiles?: OriginalFiles | undefined;
};

/** What originals a session keeps; undefined: none. Throws 'bad-argument' for what says something of others. */
export function originalsTerms(asked: Asked): OriginalsTerms | undefined {
  const place = asked.originals ?? SESSION_OPTIONS.originals.default;
  const { originalsDir, originalsFormat = SESSION_OPTIONS.originalsFormat.default } = asked;
  const promote = asked.promote ?? SESSION_OPTIONS.promote.default;
  const bytesMax = parseBytes(asked.originalsBytes ?? SESSION_OPTIONS.originalsBytes.default, 'originalsBytes');
  // What is at its default says nothing: the command line gives every option.
  const said = [
    ['originalsDir', originalsDir ?? null, null, ['disk']],
    ['originalsBytes', bytesMax, SESSION_OPTIONS.originalsBytes.default, ['disk', 'memory']],
    ['originalsFormat', originalsFormat, SESSION_OPTIONS.originalsFormat.default, ['disk', 'memory']],
    ['promote', promote, SESSION_OPTIONS.promote.default, ['disk', 'memory']],
  ] as const;
  const idle = said.find(([, one, unsaid, places]) => one !== unsaid && !(places as readonly string[]).includes(place));
  if (idle !== undefined) {
    const [name, value, , places] = idle;
    const kept = place === 'none' ? 'none are kept' : `they are kept in ${place}`;
    throw new KvError('bad-argument', `${name} needs originals${places.length === 1 ? ' on disk' : ''}, and ${kept}`, {
      values: { [name]: show(value), originals: place },
      hint: `give originals: ${places.map((one) => `'${one}'`).join(' or ')} as well`,
    });
  }
  if (place === 'none') return undefined;
  return {
    place,
    dir: originalsDir ?? asked.stateDir ?? null,
    bytesMax,
    promote,
    format: originalsFormat,
    ...given({ files: asked.originalFiles }),
  };
}
