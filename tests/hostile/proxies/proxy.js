// A reverse proxy as many are written: it forwards every header, streams both bodies and reuses connections.
const http = require('node:http');

const [port, upstreamPort] = process.argv.slice(2).map(Number);
const agent = new http.Agent({ keepAlive: true });

http
  .createServer({ insecureHTTPParser: false }, (request, response) => {
    const { method, url, headers } = request;
    const upstream = http.request(
      { host: '127.0.0.1', port: upstreamPort, method, path: url, headers, agent },
      (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      },
    );
    upstream.on('error', () => {
      if (!response.headersSent) response.writeHead(502);
      response.end();
    });
    response.on('close', () => upstream.destroy());
    request.pipe(upstream);
  })
  .listen(port, '127.0.0.1');
