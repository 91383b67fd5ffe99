// Asks a server of models with OpenAI's own Node client, as a user of Node would. node_client.py starts it.
//
//     node node_client.mjs BASE_URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "small";
const messages = [{ role: "user", content: "What is a mill race?" }];

const whole = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 12 });
assert.equal(whole.choices[0].message.role, "assistant");
assert.ok(whole.usage.completion_tokens > 0);

let text = "";
let usage = null;
const stream = await client.chat.completions.create({
  model, messages, temperature: 0, max_tokens: 12, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.total_tokens, whole.usage.total_tokens);
assert.ok(usage.prompt_tokens_details.cached_tokens > 0, "the prompt was asked before");

const completion = await client.completions.create({ model, prompt: "The mill", max_tokens: 4, n: 2, best_of: 3, seed: 1 });
assert.equal(completion.choices.length, 2);

const several = {};
for await (const chunk of await client.completions.create({ model, prompt: "The", max_tokens: 6, n: 3, stream: true })) {
  for (const choice of chunk.choices) several[choice.index] = (several[choice.index] ?? "") + choice.text;
}
assert.equal(Object.keys(several).length, 3);

const tools = [{
  type: "function",
  function: {
    name: "level",
    parameters: { type: "object", properties: { open: { type: "boolean" } }, required: ["open"], additionalProperties: false },
  },
}];
const forced = { model, messages, tools, tool_choice: "required", max_tokens: 200, temperature: 0 };
const call = (await client.chat.completions.create(forced)).choices[0].message.tool_calls[0];
assert.equal(call.function.name, "level");
assert.equal(typeof JSON.parse(call.function.arguments).open, "boolean");
const runner = client.chat.completions.stream(forced);
const streamed = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
assert.equal(streamed.function.arguments, call.function.arguments);

const vectors = await client.embeddings.create({ model, input: ["The mill", "The race"] });
assert.equal(vectors.data.length, 2);
assert.ok(vectors.data[0].embedding.every(Number.isFinite));
assert.equal((await client.models.list()).data[0].id, model);
await assert.rejects(client.chat.completions.create({ model: "other", messages }), OpenAI.NotFoundError);
await assert.rejects(client.completions.create({ model, prompt: "a", temprature: 1 }), /did you mean/);
console.log("node: answers as they should be");
