#include "remote_chat.h"

#include <optional>
#include <utility>

#include "interrupt.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

std::string text_member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

Result<RemoteChat> RemoteChat::open(const std::string& url, std::string model, std::string api_key) {
  RemoteChat chat;
  ZIPAGE_ASSIGN_OR_RETURN(chat.target_, parse_url(url));
  if (!chat.target_.base.ends_with("/v1")) chat.target_.base += "/v1";
  chat.api_key_ = std::move(api_key);
  chat.model_ = std::move(model);
  if (!chat.model_.empty()) return chat;
  HttpClient client(chat.target_);
  ZIPAGE_ASSIGN_OR_RETURN(const std::string text, client.get("/models", chat.api_key_));
  const json models = json::parse(text, nullptr, false);
  const json* data = models.is_object() && models.contains("data") ? &models["data"] : nullptr;
  if (data != nullptr && data->is_array() && !data->empty()) chat.model_ = text_member(data->front(), "id");
  if (chat.model_.empty()) return Status(StatusCode::kUnavailable, "the server names no model: give --model");
  return chat;
}

Status RemoteChat::answer(const json& fields,
                          const std::function<void(std::string_view, std::string_view)>& delta) const {
  json body = fields;
  body["model"] = model_;
  body["stream"] = true;
  HttpClient client(target_);
  std::optional<Status> outcome;
  Status in_stream;
  EventReader events([&](std::string_view data) {
    const json event = json::parse(data, nullptr, false);
    if (!event.is_object()) return;
    if (event.contains("error") && event["error"].is_object()) {
      in_stream = Status(StatusCode::kUnavailable, text_member(event["error"], "message"));
    }
    if (!event.contains("choices") || event["choices"].empty() || !event["choices"][0].contains("delta")) return;
    const json& part = event["choices"][0]["delta"];
    std::string reasoning = text_member(part, "reasoning_content");
    if (reasoning.empty()) reasoning = text_member(part, "reasoning");
    delta(reasoning, text_member(part, "content"));
  });
  HttpPost post;
  post.path = "/chat/completions";
  post.api_key = api_key_;
  post.body = to_json_text(body);
  post.data = [&](std::string_view bytes) { events.push(bytes); };
  post.done = [&](const Status& status) { outcome = status; };
  client.post(std::move(post));
  // The connection ends with the client, and with it the server's work.
  const std::function<void()> watch = [&] {
    if (outcome) return;
    if (InterruptGuard::interrupted()) return client.stop();
    client.after(0.05, watch);
  };
  watch();
  client.run();
  if (!in_stream.ok()) return in_stream;
  return outcome.value_or(Status());
}

}  // namespace zipage::apps
