/** The paths of Ollama's API, as far as they are about answers and the model that is served. */
import type { Hono } from 'hono';
import { packageVersion } from '../../native/index.ts';
import type { AnswersApi, Body, Env } from '../openai/api.ts';
import type { AnsweredPath } from '../openai/paths.ts';
import { checkedBody } from '../openai/request.ts';
import type { Service } from '../openai/service.ts';
import { OllamaAnswer } from './answer.ts';
import { GENERATE_REQUEST, OLLAMA_CHAT_REQUEST, SHOW_REQUEST, untagged } from './request.ts';

export const OLLAMA: readonly AnsweredPath[] = [
  {
    path: '/api/chat',
    does: "Answers of the model in a conversation of Ollama's API, as lines of JSON unless stream is false.",
    body: OLLAMA_CHAT_REQUEST,
  },
  { path: '/api/generate', does: 'The same for one prompt.', body: GENERATE_REQUEST },
  { path: '/api/show', does: 'What the model is.', body: SHOW_REQUEST },
  { path: '/api/tags', does: 'The models that are served.' },
  { path: '/api/version', does: 'The version of this server.' },
];

/** Puts the paths on a server. */
export function serveOllama(api: AnswersApi, app: Hono<Env>): void {
  const serviceFor = (body: Body): Service => api.serviceFor(body, untagged);
  api.post(app, '/api/chat', (body, asker) => OllamaAnswer.chat(serviceFor(body), body.value, asker));
  api.post(app, '/api/generate', (body, asker) => OllamaAnswer.generate(serviceFor(body), body.value, asker));
  api.ask(app, '/api/show', async ({ value }) =>
    shown(api.serviceOf(untagged(checkedBody(SHOW_REQUEST, value).model))),
  );
  app.get('/api/tags', (c) => c.json({ models: api.services.map(tag) }));
  app.get('/api/version', (c) => c.json({ version: packageVersion() }));
}

const details = ({ engine: { info } }: Service) => ({
  parent_model: '',
  format: info.path.endsWith('.gguf') ? 'gguf' : 'safetensors',
  family: info.config.architecture,
  families: [info.config.architecture],
  parameter_size: '',
  quantization_level: Object.keys(info.weightTypes)[0] ?? '',
});

function tag(service: Service): object {
  const { fileBytes: size, digest } = service.engine.info;
  const { model: name, startedS } = service;
  const modified_at = new Date(startedS * 1000).toISOString();
  return { name, model: name, modified_at, size, digest, details: details(service) };
}

function shown(service: Service): object {
  const { architecture, layers, contextLength, hiddenSize, queryHeads, kvHeads } = service.engine.info.config;
  return {
    modified_at: new Date(service.startedS * 1000).toISOString(),
    details: details(service),
    capabilities: ['completion', 'tools', 'embedding'],
    model_info: {
      'general.architecture': architecture,
      [`${architecture}.block_count`]: layers,
      [`${architecture}.context_length`]: contextLength,
      [`${architecture}.embedding_length`]: hiddenSize,
      [`${architecture}.attention.head_count`]: queryHeads,
      [`${architecture}.attention.head_count_kv`]: kvHeads,
    },
  };
}
