// A response of /v1/responses while it comes: its items, and the events of their stream in OpenAI's order.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/generation.h"
#include "text/tokenizer.h"

namespace zipage {

class ResponseEvents {
 public:
  using Json = nlohmann::ordered_json;
  // One event: its type, and its JSON text.
  using Sink = std::function<void(std::string_view type, const std::string& data)>;

  // `response`: the object with everything but id, status, output and usage. make_id: "msg_...", by the prefix.
  // `sink` may be null: only the whole response is wanted.
  ResponseEvents(Json response, std::function<std::string(std::string_view prefix)> make_id, const Tokenizer& tokenizer,
                 Sink sink);

  void begin();
  void add(const ChoiceDelta& delta);
  // After the last delta. The response is complete then.
  void end(const Usage& usage);
  void fail(const Status& status);
  const Json& response() const { return response_; }

 private:
  enum class Open : uint8_t { kNone, kReasoning, kMessage, kCall };
  void emit(std::string_view type, Json event);
  void open(Open kind, Json item, std::string_view part_type);
  void close(bool complete);
  void add_text(Open kind, const std::string& text, const std::vector<TokenLogprobs>& logprobs);
  void add_call(const ToolCallDelta& call);
  Json logprobs_of(const std::vector<TokenLogprobs>& logprobs) const;

  Json response_;
  std::function<std::string(std::string_view)> make_id_;
  const Tokenizer& tokenizer_;
  Sink sink_;
  int64_t sequence_ = 0;
  Open open_ = Open::kNone;
  Json item_;         // that is open
  std::string text_;  // of its part, or its arguments
  Json logprobs_;     // of its text
  std::optional<FinishReason> finish_;
};

}  // namespace zipage
