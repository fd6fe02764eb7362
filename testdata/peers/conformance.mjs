// Runs @modelcontextprotocol/conformance also on a Node.js whose node:fs has no globSync,
// which it imports and needs for other commands only.
import fs from "node:fs";
import { register } from "node:module";

if (!fs.globSync) {
  const hooks = `export async function load(url, context, next) {
    const got = await next(url, context);
    if (url.includes("/conformance/dist/")) got.source = String(got.source).replace(/,globSync as \\w+/, "");
    return got;
  }`;
  register("data:text/javascript," + encodeURIComponent(hooks));
}
await import("./node_modules/@modelcontextprotocol/conformance/dist/index.js");
