// A server with the tools, resources and prompts that the server scenarios of
// @modelcontextprotocol/conformance ask for, as they describe them.
import { setTimeout as pause } from "node:timers/promises";
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import {
  CallToolRequestSchema, CompleteRequestSchema, CreateMessageResultSchema, ElicitResultSchema, ErrorCode, GetPromptRequestSchema,
  ListPromptsRequestSchema, ListResourcesRequestSchema, ListResourceTemplatesRequestSchema, ListToolsRequestSchema, McpError,
  ReadResourceRequestSchema, SubscribeRequestSchema, UnsubscribeRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

const words = (text) => ({ type: "text", text });
const image = { type: "image", mimeType: "image/png", data: "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==" };
const audio = { type: "audio", mimeType: "audio/wav", data: "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=" };
const embedded = (uri, mimeType, text) => ({ type: "resource", resource: { uri, mimeType, text } });

const string = (more) => ({ type: "string", ...more });
const object = (properties, more) => ({ type: "object", properties, ...more });
const options = ["option1", "option2", "option3"];
const titled = [{ const: "value1", title: "First Option" }, { const: "value2", title: "Second Option" }];

// ask makes a tool that asks the user.
const ask = (schema) => async ({ message = "Please fill this in" }, extra) => {
  const params = { message, requestedSchema: schema };
  const said = await extra.sendRequest({ method: "elicitation/create", params }, ElicitResultSchema);
  return [words(`User response: ${JSON.stringify(said)}`)];
};

const tools = {
  test_simple_text: () => [words("This is a simple text response for testing.")],
  test_image_content: () => [image],
  test_audio_content: () => [audio],
  test_embedded_resource: () => [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
  test_multiple_content_types: () => [
    words("Multiple content types test:"), image, embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
  ],
  test_error_handling: () => {
    throw new Error("This tool intentionally returns an error for testing");
  },
  test_tool_with_logging: async (_, extra) => {
    for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
      await extra.sendNotification({ method: "notifications/message", params: { level: "info", data } });
      await pause(50);
    }
    return [words("done")];
  },
  test_tool_with_progress: async (_, extra) => {
    for (const progress of [0, 50, 100]) {
      const progressToken = extra._meta?.progressToken;
      if (progressToken !== undefined) await extra.sendNotification({ method: "notifications/progress", params: { progressToken, progress, total: 100 } });
      await pause(50);
    }
    return [words("done")];
  },
  test_sampling: async ({ prompt }, extra) => {
    const params = { messages: [{ role: "user", content: words(prompt) }], maxTokens: 100 };
    const said = await extra.sendRequest({ method: "sampling/createMessage", params }, CreateMessageResultSchema);
    return [words(`LLM response: ${said.content.text}`)];
  },
  test_elicitation: ask(object({ username: string(), email: string() }, { required: ["username", "email"] })),
  test_elicitation_sep1034_defaults: ask(object({
    name: string({ default: "John Doe" }), age: { type: "integer", default: 30 }, score: { type: "number", default: 95.5 },
    status: string({ enum: ["active", "inactive", "pending"], default: "active" }), verified: { type: "boolean", default: true },
  })),
  test_elicitation_sep1330_enums: ask(object({
    untitledSingle: string({ enum: options }), titledSingle: string({ oneOf: titled }),
    legacyEnum: string({ enum: ["opt1", "opt2"], enumNames: ["Option One", "Option Two"] }),
    untitledMulti: { type: "array", items: string({ enum: options }) }, titledMulti: { type: "array", items: { anyOf: titled } },
  })),
  json_schema_2020_12_tool: () => [words("done")],
};

const schemas = {
  test_sampling: object({ prompt: string() }, { required: ["prompt"] }),
  test_elicitation: object({ message: string() }, { required: ["message"] }),
  json_schema_2020_12_tool: {
    $schema: "https://json-schema.org/draft/2020-12/schema",
    $defs: { address: object({ street: string(), city: string() }) },
    ...object({ name: string(), address: { $ref: "#/$defs/address" } }),
    additionalProperties: false,
  },
};

const resources = [
  { uri: "test://static-text", name: "Static text", mimeType: "text/plain" },
  { uri: "test://static-binary", name: "Static image", mimeType: "image/png" },
  { uri: "test://watched-resource", name: "Watched resource", mimeType: "text/plain" },
];
const templates = [{ uriTemplate: "test://template/{id}/data", name: "Template", mimeType: "application/json" }];

// read gives the contents of a resource.
function read(uri) {
  const id = /^test:\/\/template\/(.+)\/data$/.exec(uri)?.[1];
  if (id) return { uri, mimeType: "application/json", text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) };
  const { mimeType } = resources.find((r) => r.uri === uri) ?? {};
  if (!mimeType) throw new McpError(-32002, "Resource not found", { uri });
  return mimeType === "image/png" ? { uri, mimeType, blob: image.data } : { uri, mimeType, text: "This is the content of the static text resource." };
}

const says = (content) => ({ messages: [{ role: "user", content }] });
const prompts = {
  test_simple_prompt: () => says(words("This is a simple prompt for testing.")),
  test_prompt_with_arguments: ({ arg1, arg2 }) => says(words(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)),
  test_prompt_with_embedded_resource: ({ resourceUri }) => says(embedded(resourceUri, "text/plain", "Embedded resource content for testing.")),
  test_prompt_with_image: () => says(image),
};
const takes = { test_prompt_with_arguments: ["arg1", "arg2"], test_prompt_with_embedded_resource: ["resourceUri"] };

// addLists gives a server the resources and the prompts.
function addLists(server) {
  server.setRequestHandler(ListResourcesRequestSchema, () => ({ resources }));
  server.setRequestHandler(ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: templates }));
  server.setRequestHandler(ReadResourceRequestSchema, ({ params }) => ({ contents: [read(params.uri)] }));
  server.setRequestHandler(SubscribeRequestSchema, ({ params }) => {
    server.sendResourceUpdated({ uri: params.uri });
    return {};
  });
  server.setRequestHandler(UnsubscribeRequestSchema, () => ({}));
  server.setRequestHandler(ListPromptsRequestSchema, () => ({
    prompts: Object.keys(prompts).map((name) => ({ name, description: `${name} of the conformance tests`, arguments: (takes[name] ?? []).map((arg) => ({ name: arg, required: true })) })),
  }));
  server.setRequestHandler(GetPromptRequestSchema, ({ params }) => {
    if (!prompts[params.name]) throw new McpError(ErrorCode.InvalidParams, `Prompt ${params.name} not found`);
    return prompts[params.name](params.arguments ?? {});
  });
  server.setRequestHandler(CompleteRequestSchema, ({ params }) => ({
    completion: { values: ["paris", "park", "party"].filter((v) => v.startsWith(params.argument.value)), total: 150, hasMore: false },
  }));
}

export function fixture() {
  const capabilities = { tools: {}, logging: {}, resources: { subscribe: true, listChanged: true }, prompts: {}, completions: {} };
  const server = new Server({ name: "fixture", version: "1" }, { capabilities });
  addLists(server);
  server.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: Object.keys(tools).map((name) => ({ name, description: `${name} of the conformance tests`, inputSchema: schemas[name] ?? object({}) })),
  }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
    try {
      return { content: await tools[params.name](params.arguments ?? {}, extra) };
    } catch (err) {
      return { isError: true, content: [words(err.message)] };
    }
  });
  return server;
}
