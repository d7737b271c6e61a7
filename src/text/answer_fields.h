// The fields of a request that say what its answer looks like: response_format, structured_outputs, tools, tool_choice.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_parser.h"
#include "zipage/status.h"
#include "zipage/structured_output.h"

namespace zipage {

struct ToolUse {
  enum class Choice : uint8_t {
    kNone,      // the model may see tools; its answer is text
    kAuto,      // it may call them
    kRequired,  // it must call one or more
    kNamed,     // it must call `tools`' only one
  };
  Choice choice = Choice::kNone;
  std::vector<Tool> tools;  // that may be called
  bool several = true;      // parallel_tool_calls
};

struct AnswerFields {
  std::optional<StructuredOutput> structured_output;
  std::string structured_field;  // that asked for it
  ToolUse tool_use;
  std::string tools;  // the JSON list as it was sent; "" = none
};

// `text`: what `body` was parsed from, or "". The order of a schema's properties, which is the order of an answer's, is
// known from it alone. Errors name the field.
Result<AnswerFields> read_answer_fields(const nlohmann::json& body, std::string_view text);

// The same fields' schemas.
class JsonFields;
void describe_answer_fields(JsonFields& fields);

}  // namespace zipage
