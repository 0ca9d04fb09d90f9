/** `/v1/embeddings`: texts as vectors, the means of a language model's states. */
import { given } from '../../native/index.ts';
import type { EmbedOptions, Prompt } from '../options/types.ts';
import { checkedBody, EMBEDDING_REQUEST, type EmbeddingRequest } from './request.ts';
import type { Asker, Service } from './service.ts';

/** Throws what a request is refused with. */
export async function embeddings(service: Service, body: unknown, asker: Asker): Promise<object> {
  const request = checkedBody(EMBEDDING_REQUEST, body);
  service.checkModel(request.model);
  const { signal, priority, weight, own, used } = asker;
  const options: EmbedOptions = {
    signal,
    schedulingPriority: Math.max(request.priority ?? priority ?? 0, priority ?? Number.NEGATIVE_INFINITY),
    ...given({ schedulingWeight: weight, kvGroup: own?.kvGroup }),
  };
  const { vectors, tokens } = await service.engine.embed(textsOf(request), options);
  used?.({ promptTokens: tokens, cachedTokens: 0, tokens: 0 });
  const isText = request.encoding_format === 'base64';
  return {
    object: 'list',
    data: vectors.map((vector, index) => ({
      object: 'embedding',
      index,
      embedding: isText ? base64Of(vector) : Array.from(vector),
    })),
    model: service.model,
    usage: { prompt_tokens: tokens, total_tokens: tokens },
  };
}

/** One text or several, as letters or as tokens. */
function textsOf({ input }: EmbeddingRequest): readonly Prompt[] {
  if (typeof input === 'string') return [input];
  return typeof input[0] === 'number' ? [input as number[]] : (input as readonly Prompt[]);
}

/** Numbers of 32 bits, the lowest byte first. */
function base64Of(vector: Float32Array): string {
  const bytes = Buffer.alloc(vector.length * 4);
  for (const [at, value] of vector.entries()) bytes.writeFloatLE(value, at * 4);
  return bytes.toString('base64');
}
