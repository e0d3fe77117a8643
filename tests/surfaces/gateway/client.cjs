// A client of the gateway as its users write one: node client.cjs MODULES URL KEY HEADER
const { createRequire } = require("node:module");
const [modules, url, key, header] = process.argv.slice(2);
const load = createRequire(`${modules}/x.js`);
const { Client } = load("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = load("@modelcontextprotocol/sdk/client/streamableHttp.js");

const headers = header === "authorization" ? { authorization: `Bearer ${key}` } : { [header]: key };
const examples = [
  ["search-knowledge-base", { namespace: "products", query: "Find pressure washer models under 2000 PSI", topK: 5, metadata: { category: "washers" } }],
  ["search-knowledge-base", { namespace: "products", query: "pressure washer", metadata: { psi: { $lt: 2000 } } }],
  ["get-entity", { id: "68dfc8fd5e40fe1ae99c6b5b" }],
  ["get-entity", {}],
  ["get-knowledge-base-structure", {}],
  ["health-check", {}],
];

async function main() {
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
  const client = new Client({ name: "example", version: "1.0.0" });
  await client.connect(transport);
  const said = { session: transport.sessionId ?? null, tools: (await client.listTools()).tools, results: [] };
  for (const [name, args] of examples) said.results.push(await client.callTool({ name, arguments: args }));
  await transport.terminateSession();
  await client.close();
  console.log(JSON.stringify(said));
}

main().catch((error) => {
  console.log(JSON.stringify({ error: String(error.message ?? error) }));
  process.exit(1);
});
