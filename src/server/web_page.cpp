// The page at "/": a chat with the served model.
#include "server/router.h"
#include "server/serving.h"

namespace zipage {
namespace {

const char* const kWebPage = R"html(<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>zipage</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 0 auto; padding: 1rem; color-scheme: light dark }
header, form { display: flex; gap: 1rem; align-items: baseline } header { justify-content: space-between }
.user { font-weight: 600; margin-top: 1rem } .said { white-space: pre-wrap } .thought { opacity: .55; font-size: .9em }
.error { color: #c33 } textarea { flex: 1; font: inherit; padding: .5rem } button { font: inherit; padding: .5rem 1rem }
</style>
<header><h1>zipage</h1><span id="model"></span><a href="docs">API</a></header>
<main></main>
<form><textarea rows="2" placeholder="Ask" autofocus></textarea><button>Send</button></form>
<script type="module">
const main = document.querySelector("main"), form = document.querySelector("form"), input = document.querySelector("textarea");
const button = document.querySelector("button"), messages = [];
let running = null, key = "";
const add = (name, text = "") => { const e = document.createElement("div"); e.className = name; e.textContent = text; main.append(e); return e };
const headers = () => ({"Content-Type": "application/json", ...(key && {Authorization: "Bearer " + key})});
async function ask(path, options = {}) {
  let answer = await fetch(path, {...options, headers: headers()});
  if (answer.status === 401 && (key = prompt("API key") ?? "")) answer = await fetch(path, {...options, headers: headers()});
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer;
}
ask("v1/models").then(a => a.json()).then(m => document.querySelector("#model").textContent = m.data[0].id, e => add("error", e.message));
async function* events(answer) {
  let rest = "";
  for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
  }
}
async function send(text) {
  messages.push({role: "user", content: text});
  add("user", text);
  const thought = add("said thought"), said = add("said");
  running = new AbortController();
  button.textContent = "Stop";
  try {
    const body = JSON.stringify({messages, stream: true, stream_options: {include_usage: true}});
    for await (const event of events(await ask("v1/chat/completions", {method: "POST", body, signal: running.signal}))) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices[0]?.delta;
      if (delta?.reasoning_content) thought.textContent += delta.reasoning_content;
      if (delta?.content) said.textContent += delta.content;
    }
  } catch (error) { if (error.name !== "AbortError") add("error", error.message) }
  messages.push({role: "assistant", content: said.textContent});
  running = null;
  button.textContent = "Send";
}
form.onsubmit = event => {
  event.preventDefault();
  if (running) return running.abort();
  const text = input.value.trim();
  input.value = "";
  if (text) send(text);
};
input.onkeydown = event => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); form.requestSubmit() } };
</script></html>
)html";

}  // namespace

void add_web_page(Router& router) {
  router.add("GET", "/", RunsOn::kExchange, [](const ExchangePtr& exchange) {
    exchange->send(text_response(200, "text/html; charset=utf-8", kWebPage));
  });
}

}  // namespace zipage
