// Finds the tool calls in a model's answer while it is written.
//
// Thread-safety: a ToolParser is one answer's, for one thread at a time; the functions are pure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zipage/status.h"
#include "zipage/structured_output.h"

namespace zipage {

struct ToolCallDelta {
  int index = 0;         // among the answer's tool calls
  std::string id, name;  // on a call's first delta only
  std::string arguments;
};

class ToolParser {
 public:
  struct Delta {
    std::string content;
    std::vector<ToolCallDelta> calls;
  };
  virtual ~ToolParser() = default;
  // The next piece of text, whole characters. Tags and the JSON around a call's arguments are in neither part; white
  // space around calls is dropped. Holds back what may still become a call.
  virtual Delta push(std::string_view text) = 0;
  // What was held back. A call that has not ended keeps the arguments it has.
  virtual Delta finish() = 0;
};

// How a model writes its calls.
enum class ToolFormat : uint8_t {
  kHermes,  // <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, one for each call
  kLlama3,  // {"name": "f", "parameters": {...}}, several joined by "; ", sometimes behind <|python_tag|>
};
// By the name of --tool-call-parser: "hermes", "llama3_json", or "auto" and "", which look at the model's template.
// kInvalidArgument for another name.
Result<ToolFormat> tool_format(std::string_view parser, std::string_view template_source);
// The name of a --tool-call-parser.
std::string_view name(ToolFormat format);

// make_id: of a new call, "call_...".
std::unique_ptr<ToolParser> make_tool_parser(ToolFormat format, std::function<std::string()> make_id);

// A function that a model may call.
struct Tool {
  std::string name;
  std::string parameters;  // JSON schema; "" = any object
  bool strict = false;     // arguments must match the schema even where calls are the model's choice
};

// The grammar of an answer that is nothing but calls of these tools: one, or one and more. REQUIRES: tools.
StructuredOutput tool_call_grammar(ToolFormat format, const std::vector<Tool>& tools, bool several);
// The grammar of an answer that may call tools, where each call matches its schema.
StructuredOutput optional_tool_call_grammar(const std::vector<Tool>& tools, bool several);

}  // namespace zipage
