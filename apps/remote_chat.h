// Chats with a server that speaks OpenAI's API.
//
// Thread-safety: one thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "http_client.h"
#include "zipage/status.h"

namespace zipage::apps {

class RemoteChat {
 public:
  // url: with or without "/v1". model: "" = the first that the server names.
  static Result<RemoteChat> open(const std::string& url, std::string model, std::string api_key);

  // Blocks until the answer is complete, or an InterruptGuard has been interrupted. `fields`: of the request, messages
  // among them.
  Status answer(const nlohmann::json& fields,
                const std::function<void(std::string_view reasoning, std::string_view content)>& delta) const;

 private:
  HttpTarget target_;
  std::string model_, api_key_;
};

}  // namespace zipage::apps
