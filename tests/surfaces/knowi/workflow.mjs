// The tools of documents and datasets, as a TypeScript client uses them: ingest, list, ask, push, read and delete.
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
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
await client.connect(transport);

async function call(tool, args) {
  const result = await client.callTool({ name: `knowi_${tool}`, arguments: args });
  return result.isError ? result.content[0].text : result.structuredContent;
}

const { tools } = await client.listTools();
const added = await call("ingest_document", { fileName: "client.md", content: "A client was here." });
const listed = await call("list_documents", { query: "client.md" });
const answer = await call("ask_document", { question: "Who was here?", documentIds: [added.documentId] });
const deleted = await call("delete_document", { documentId: added.documentId, confirm: true });
const refused = await call("delete_document", { documentId: added.documentId, confirm: true });
const pushed = await call("push_data", { datasetName: `Of ${name} ${mode}`, rows: [{ City: "Graz" }] });
const asset = { assetType: "dataset", assetId: pushed.datasetId };
const found = await call("get_data", { datasetId: pushed.datasetId });
const details = await call("get_details", asset);
const gone = await call("delete", { ...asset, confirm: true });
if (transport.terminateSession) await transport.terminateSession();
await client.close();
console.log(
  JSON.stringify({
    tools: tools.map((tool) => tool.name),
    listed: listed.documents.map((document) => document.documentName),
    answered: typeof answer.answer,
    deleted: deleted.deleted,
    refused,
    rows: found.rows,
    schema: details.schema.map((field) => field.name),
    assetDeleted: gone.deleted,
  }),
);
