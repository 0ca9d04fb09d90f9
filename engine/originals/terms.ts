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

/** What originals a session keeps; undefined: none. Throws 'bad-argument' for what says something of none. */
export function originalsTerms(asked: Asked): OriginalsTerms | undefined {
  const { originals = SESSION_OPTIONS.originals.default, originalsDir, originalsBytes, originalsFormat } = asked;
  if (originals === 'none') {
    const { originalsBytes: most, originalsFormat: format, promote } = SESSION_OPTIONS;
    // The command line gives every option, at its default where nobody named it.
    const said = [
      ['originalsDir', originalsDir ?? null, null],
      [
        'originalsBytes',
        originalsBytes === undefined ? most.default : parseBytes(originalsBytes, 'originalsBytes'),
        most.default,
      ],
      ['originalsFormat', originalsFormat ?? format.default, format.default],
      ['promote', asked.promote ?? promote.default, promote.default],
    ] as const;
    const idle = said.find(([, one, unsaid]) => one !== unsaid);
    if (idle === undefined) return undefined;
    throw new KvError('bad-argument', `${idle[0]} needs originals, and none are kept`, {
      values: { [idle[0]]: show(idle[1]) },
      hint: "give originals: 'disk' or 'memory' as well",
    });
  }
  return {
    place: originals,
    dir: originalsDir ?? asked.stateDir ?? null,
    bytesMax: parseBytes(originalsBytes ?? SESSION_OPTIONS.originalsBytes.default, 'originalsBytes'),
    promote: asked.promote ?? SESSION_OPTIONS.promote.default,
    format: originalsFormat ?? SESSION_OPTIONS.originalsFormat.default,
    ...given({ files: asked.originalFiles }),
  };
}
