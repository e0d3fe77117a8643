// The documented workflow, as a TypeScript client does it: list bases, browse, read by pages, download, search.
//
//     node workflow.mjs MODULES URL TOKEN PACKAGE MODE
//
// PACKAGE is "sdk" (the client of the legacy era) or "client" (either era, by MODE). What was found is printed as JSON.
import { pathToFileURL } from "node:url";

const [modules, url, token, name, mode] = process.argv.slice(2);
const file = (path) => import(pathToFileURL(`${modules}/@modelcontextprotocol/${path}`).href);

async function load() {
  if (name === "client") return file("client/dist/index.mjs");
  const [{ Client }, { StreamableHTTPClientTransport }] = await Promise.all([
    file("sdk/dist/esm/client/index.js"),
    file("sdk/dist/esm/client/streamableHttp.js"),
  ]);
  return { Client, StreamableHTTPClientTransport };
}

const { Client, StreamableHTTPClientTransport } = await load();
const options = name === "client" ? { versionNegotiation: { mode: mode === "legacy" ? mode : { pin: mode } } } : {};
const client = new Client({ name: "workflow", version: "1" }, options);
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));

async function call(tool, args) {
  const result = await client.callTool({ name: `wegent_kb_${tool}`, arguments: args });
  return JSON.parse(result.content[0].text);
}

const { tools } = await client.listTools();
const bases = await call("list_knowledge_bases", { query: "manuals" });
const base = bases.items[0].knowledge_base_id;
const tree = await call("list_nodes", { knowledge_base_id: base, recursive: true });

function find(items, wanted) {
  for (const item of items) {
    const found = item.name === wanted ? item : find(item.children, wanted);
    if (found) return found;
  }
  return null;
}

const document = find(tree.items, "guide.md").raw_id;
let text = "";
for (let more = true; more; ) {
  const page = await call("get_document_content", { document_id: document, offset: text.length, limit: 30 });
  text += page.content;
  more = page.has_more;
}
const credential = await call("get_document_download", { document_id: document });
const response = await fetch(new URL(credential.resource_url, url), { headers: credential.headers });
const hits = await call("search_content", { query: "when to oil the pump", knowledge_base_ids: [base] });
const refused = await call("search_content", { query: "x", knowledge_base_ids: [base], max_results: 51 });
await client.close();
console.log(
  JSON.stringify({
    tools: tools.map((tool) => tool.name),
    document,
    text,
    status: response.status,
    file: await response.text(),
    found: hits.records[0].document_id,
    refused,
  }),
);
