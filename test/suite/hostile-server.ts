/** TCP servers on loopback that answer as broken, slow and hostile ones do: over HTTP, and as a PostgreSQL. */
import { createServer, type Server, type Socket } from 'node:net';

/** What a server does once the first bytes of a request are there. */
export type Behaviour = (socket: Socket) => void;

const HEAD = 'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n';
const PIECE = 65_536;

/** Sends `chunk` as fast as it is taken, for ever. */
function withoutEnd(socket: Socket, chunk: Uint8Array): void {
  const send = (): void => {
    while (!socket.destroyed && socket.write(chunk));
    if (!socket.destroyed) socket.once('drain', send);
  };
  send();
}

/** How servers that are asked over HTTP can fail. */
export const OVER_HTTP = {
  'accepts and is silent': () => {},
  'sends half a header': (socket) => void socket.write('HTTP/1.1 200 OK\r\ncontent-ty'),
  'stalls in the body': (socket) => void socket.write(`${HEAD}content-length: 1000\r\n\r\n{"title":`),
  'drips a byte at a time': (socket) => {
    socket.write(`${HEAD}content-length: 100000\r\n\r\n`);
    const timer = setInterval(() => socket.write(' '), 200);
    socket.on('close', () => clearInterval(timer));
  },
  closes: (socket) => void socket.destroy(),
  'answers HTML': (socket) =>
    void socket.end('HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n<html>hi</html>'),
  'answers without end': (socket) => {
    socket.write(`${HEAD}transfer-encoding: chunked\r\n\r\n`);
    withoutEnd(socket, Buffer.from(`${PIECE.toString(16)}\r\n${' '.repeat(PIECE)}\r\n`));
  },
  'sends headers without end': (socket) => {
    socket.write(HEAD);
    withoutEnd(socket, Buffer.from('x-more: and more\r\n'.repeat(1000)));
  },
  'promises an answer without end': (socket) =>
    withoutEnd(socket, Buffer.from('HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n'.repeat(1000))),
} as const satisfies Record<string, Behaviour>;

const message = (type: string, body: Uint8Array): Buffer => {
  const head = Buffer.alloc(5);
  head.write(type);
  head.writeUInt32BE(body.length + 4, 1);
  return Buffer.concat([head, body]);
};
/** The log-in is over. */
const WELCOME = Buffer.concat([message('R', Buffer.alloc(4)), message('Z', Buffer.from('I'))]);

/** How a PostgreSQL can fail. */
export const AS_POSTGRES = {
  'lets one in and is silent': (socket) => void socket.write(WELCOME),
  'hangs up behind the log-in': (socket) => void socket.end(message('R', Buffer.alloc(4))),
  'sends one row without end': (socket) => {
    socket.write(WELCOME);
    socket.write(Buffer.from([0x44, 0x7f, 0xff, 0xff, 0xff]));
    withoutEnd(socket, Buffer.alloc(PIECE));
  },
  closes: (socket) => void socket.destroy(),
} as const satisfies Record<string, Behaviour>;

export class HostileServer {
  readonly port: number;
  /** How often somebody has connected. */
  connections = 0;
  readonly #server: Server;
  readonly #sockets: Set<Socket>;
  #closedBytes = 0;

  private constructor(server: Server, sockets: Set<Socket>) {
    this.#server = server;
    this.#sockets = sockets;
    this.port = (server.address() as { port: number }).port;
  }

  static async open(behaviour: Behaviour): Promise<HostileServer> {
    const sockets = new Set<Socket>();
    const server = createServer((socket) => {
      opened.connections++;
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => {
        sockets.delete(socket);
        opened.#closedBytes += socket.bytesWritten;
      });
      socket.once('data', () => behaviour(socket));
      // What follows is read and not answered, so that whoever sends it is not held up by that.
      socket.resume();
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const opened = new HostileServer(server, sockets);
    return opened;
  }

  /** What it has sent to all. */
  get bytes(): number {
    return [...this.#sockets].reduce((sum, { bytesWritten }) => sum + bytesWritten, this.#closedBytes);
  }

  /** Connections that nobody has ended. */
  get open(): number {
    return this.#sockets.size;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
