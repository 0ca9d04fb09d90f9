/**
 * A server in one file, without a framework: `POST /` with a text is answered as it is written, each client goes on in
 * the conversation that its cookie names, all of them live in one budget of memory, and whoever leaves ends the answer.
 *
 *   node --import tsx examples/server.ts
 *   curl -N -b name=ann -d 'What is honey?' http://127.0.0.1:8080
 */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { type Chat, createEngine } from 'palimpsest';

/** Serves a model until it is closed. → where, and how to end it */
export async function run(model: string, port: number) {
  const engine = await createEngine({ model, stateDir: null, kvBudget: '8MiB' });
  const chats = new Map<string, Promise<Chat>>();
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const name = /name=([\w-]+)/.exec(request.headers.cookie ?? '')?.[1] ?? randomUUID();
    const gone = new AbortController();
    response.on('close', () => gone.abort());
    try {
      const question = await text(request);
      if (!chats.has(name)) chats.set(name, engine.chat({ template: 'hermes' }));
      const chat = await chats.get(name)!;
      response.setHeader('set-cookie', `name=${name}`);
      for await (const piece of chat.send(question, { maxTokens: 64, signal: gone.signal })) response.write(piece);
      response.end();
    } catch (error) {
      if (!response.headersSent) response.statusCode = 400;
      response.end(String(error));
    }
  };
  const server = createServer((request, response) => void answer(request, response));
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const close = async (): Promise<void> => {
    server.close();
    await engine.close();
  };
  return { url, engine, close };
}

if (process.argv[1] === import.meta.filename) console.log(`listening on ${(await run('reference', 8080)).url}`);
