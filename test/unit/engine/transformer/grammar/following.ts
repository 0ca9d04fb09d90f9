/** Texts against grammars, a byte at a time, over the tokens of the reference model. */
import { afterAll, beforeAll } from 'vitest';
import { allows } from '../../../../../engine/transformer/grammar/constraint.ts';
import { Grammars } from '../../../../../engine/transformer/grammar/grammars.ts';
import type { GrammarOption } from '../../../../../engine/transformer/grammar/options.ts';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import type { LoadedModel } from '../../../../../engine/transformer/types.ts';
import { MODEL } from '../../on-reference.ts';

/** What becomes of a text: it is complete, the beginning of one, or left the grammar. */
export type Followed = 'complete' | 'begun' | 'refused';

/** Opened before the tests of a file. → the model, its grammars, and what follows texts */
export function onGrammars() {
  let model: LoadedModel;
  let grammars: Grammars;
  const byteIds = new Map<number, number>();
  beforeAll(async () => {
    model = await loadModel(MODEL, {});
    grammars = Grammars.of(model);
    for (let id = 0; id < model.config.vocabSize; id++) {
      const bytes = model.tokenizer.bytes(id);
      if (bytes.length === 1) byteIds.set(bytes[0]!, id);
    }
  });
  afterAll(async () => {
    await grammars.close();
    model.weights.close();
  });
  const follow = async (grammar: GrammarOption, text: string): Promise<Followed> => {
    const constraint = (await grammars.open(grammar))!;
    try {
      for (const byte of Buffer.from(text)) {
        const id = byteIds.get(byte)!;
        if (!allows(constraint.mask, id)) return 'refused';
        await constraint.accept(id);
      }
      return constraint.isComplete && (await constraint.fulfils(text)) ? 'complete' : 'begun';
    } finally {
      constraint.close();
    }
  };
  return { model: () => model, grammars: () => grammars, follow };
}
