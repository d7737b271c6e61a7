#include "text/tool_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "text/json_fields.h"
#include "text/json_text.h"
#include "text/tool_call_reader.h"

namespace zipage {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>", kPythonTag = "<|python_tag|>";

// Between the JSON tokens of a call that a grammar enforces.
constexpr int kMaxWhitespace = 8;

// Hands one call's parts on as they are known.
class CallReport {
 public:
  explicit CallReport(std::function<std::string()> make_id) : make_id_(std::move(make_id)) {}

  void begin() {
    reader_.emplace();
    named_ = false;
  }
  ToolCallReader& reader() { return *reader_; }
  bool named() const { return named_; }

  void report(ToolParser::Delta& delta) {
    if (!reader_->has_name()) return;
    if (!named_) {
      delta.calls.push_back({++index_, make_id_(), reader_->name(), reader_->take_arguments()});
      named_ = true;
      return;
    }
    std::string arguments = reader_->take_arguments();
    if (arguments.empty()) return;
    const bool same = !delta.calls.empty() && delta.calls.back().index == index_;
    if (same) {
      delta.calls.back().arguments += arguments;
    } else {
      delta.calls.push_back({index_, "", "", std::move(arguments)});
    }
  }

 private:
  std::function<std::string()> make_id_;
  std::optional<ToolCallReader> reader_;
  bool named_ = false;
  int index_ = -1;
};

// Reads byte by byte, and says once a piece what it has brought to the call that is open.
class ByteParser : public ToolParser {
 public:
  explicit ByteParser(std::function<std::string()> make_id) : call_(std::move(make_id)) {}

  Delta push(std::string_view text) final {
    Delta delta;
    for (const char byte : text) take(byte, delta);
    if (in_call()) call_.report(delta);
    return delta;
  }

 protected:
  virtual void take(char byte, Delta& delta) = 0;
  virtual bool in_call() const = 0;

  CallReport call_;
};

class HermesParser final : public ByteParser {
 public:
  using ByteParser::ByteParser;

  Delta finish() override {
    Delta delta;
    if (at_ == At::kCall) give_up(delta);
    if (at_ == At::kText) {
      const bool only_space = std::ranges::all_of(held_, is_json_space);
      if (!(only_space && called_)) delta.content += held_;
    }
    held_.clear();
    return delta;
  }

 private:
  enum class At : uint8_t { kText, kCall, kAfterCall, kBroken };

  static bool begins_tag(std::string_view text) { return kCallBegin.starts_with(text) || kCallEnd.starts_with(text); }

  bool in_call() const override { return at_ == At::kCall; }

  void take(char byte, Delta& delta) override {
    switch (at_) {
      case At::kText:
        return take_text(byte, delta);
      case At::kCall: {
        const auto state = call_.reader().push(byte);
        if (state == ToolCallReader::State::kDone) {
          call_.report(delta);
          called_ = true;
          at_ = At::kAfterCall;
          held_.clear();
        } else if (state == ToolCallReader::State::kWrong) {
          give_up(delta);
        }
        return;
      }
      case At::kAfterCall:
        return skip_end_tag(byte, delta);
      case At::kBroken:
        held_ += byte;
        if (!held_.ends_with(kCallEnd)) return;
        held_.clear();
        at_ = At::kText;
        return;
    }
  }

  // held_: white space, then the beginning of a tag.
  void take_text(char byte, Delta& delta) {
    held_ += byte;
    const size_t tag = held_.find_first_not_of(" \t\r\n");
    if (tag == std::string::npos) return;
    const std::string_view rest = std::string_view(held_).substr(tag);
    if (rest == kCallBegin) {
      held_.clear();
      call_.begin();
      at_ = At::kCall;
      return;
    }
    // An end tag without its call is dropped.
    if (rest == kCallEnd) return held_.clear();
    if (begins_tag(rest)) return;
    delta.content += held_.substr(0, tag);
    held_.erase(0, tag);
    // What has failed to be a tag may hold white space or the beginning of the real one.
    while (!held_.empty() && !is_json_space(held_.front()) && !begins_tag(held_)) {
      delta.content += held_.front();
      held_.erase(0, 1);
    }
  }

  // Behind a call comes its end tag, or a careless model's next call or text.
  void skip_end_tag(char byte, Delta& delta) {
    held_ += byte;
    const size_t tag = held_.find_first_not_of(" \t\r\n");
    if (tag == std::string::npos) return;
    const std::string_view rest = std::string_view(held_).substr(tag);
    if (kCallEnd.starts_with(rest)) {
      if (rest == kCallEnd) {
        held_.clear();
        at_ = At::kText;
      }
      return;
    }
    at_ = At::kText;
    const std::string text = std::exchange(held_, {});
    for (const char each : text) take_text(each, delta);
  }

  // What followed the tag is no call, or none that ended. Of one whose name is known the rest is dropped.
  void give_up(Delta& delta) {
    call_.report(delta);
    if (!call_.named()) {
      std::string raw = call_.reader().raw();
      const size_t begin = raw.find_first_not_of(" \t\r\n");
      raw.erase(0, begin == std::string::npos ? raw.size() : begin);
      at_ = At::kText;
      for (const char each : raw) take_text(each, delta);
    } else {
      called_ = true;
      at_ = At::kBroken;
    }
  }

  At at_ = At::kText;
  bool called_ = false;
  std::string held_;
};

class Llama3Parser final : public ByteParser {
 public:
  using ByteParser::ByteParser;

  Delta finish() override {
    Delta delta;
    if (at_ == At::kStart) delta.content = std::exchange(held_, {});
    if (at_ == At::kCall) {
      call_.report(delta);
      if (!call_.named()) delta.content += held_ + call_.reader().raw();
    }
    return delta;
  }

 private:
  enum class At : uint8_t { kStart, kCall, kBetween, kText };

  bool in_call() const override { return at_ == At::kCall; }

  void take(char byte, Delta& delta) override {
    switch (at_) {
      case At::kText:
        delta.content += byte;
        return;
      case At::kStart:
        return take_start(byte, delta);
      case At::kBetween:
        if (byte == ';' || is_json_space(byte)) return;
        if (byte != '{') {
          at_ = At::kText;
          delta.content += byte;
          return;
        }
        held_.clear();
        begin_call(byte);
        return;
      case At::kCall:
        break;
    }
    const auto state = call_.reader().push(byte);
    if (state == ToolCallReader::State::kDone) {
      call_.report(delta);
      at_ = At::kBetween;
    } else if (state == ToolCallReader::State::kWrong) {
      call_.report(delta);
      if (!call_.named()) delta.content += held_ + call_.reader().raw();
      at_ = At::kText;
    }
  }

  void begin_call(char byte) {
    call_.begin();
    call_.reader().push(byte);
    at_ = At::kCall;
  }

  void take_start(char byte, Delta& delta) {
    const size_t text = held_.find_first_not_of(" \t\r\n");
    const bool in_tag = text != std::string::npos;
    if (byte == '{' && (!in_tag || std::string_view(held_).substr(text) == kPythonTag)) {
      if (in_tag) held_.clear();
      return begin_call(byte);
    }
    held_ += byte;
    if (is_json_space(byte) && (!in_tag || std::string_view(held_).substr(text).starts_with(kPythonTag))) {
      if (in_tag) held_.pop_back();
      return;
    }
    const size_t begin = held_.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos || kPythonTag.starts_with(std::string_view(held_).substr(begin))) return;
    std::string shown = std::exchange(held_, {});
    if (std::string_view(shown).substr(begin).starts_with(kPythonTag)) shown.erase(0, begin + kPythonTag.size());
    delta.content += shown;
    at_ = At::kText;
  }

  At at_ = At::kStart;
  std::string held_;
};

// {"name": "f", "arguments": SCHEMA} as a structural tag writes it.
ordered_json call_tag(ToolFormat format, const Tool& tool) {
  const bool hermes = format == ToolFormat::kHermes;
  std::string begin = fmt::format(R"({}{{"name": {}, "{}": )", hermes ? "<tool_call>\n" : "",
                                  to_json_text(nlohmann::json(tool.name)), hermes ? "arguments" : "parameters");
  ordered_json tag;
  tag["begin"] = std::move(begin);
  tag["content"]["type"] = "json_schema";
  tag["content"]["json_schema"] =
      tool.parameters.empty() ? ordered_json{{"type", "object"}} : ordered_json::parse(tool.parameters);
  tag["content"]["max_whitespace_cnt"] = kMaxWhitespace;
  tag["end"] = hermes ? "}\n</tool_call>" : "}";
  return tag;
}

StructuredOutput structural(ordered_json format) {
  ordered_json tag;
  tag["type"] = "structural_tag";
  tag["format"] = std::move(format);
  StructuredOutput output;
  output.kind = StructuredOutput::Kind::kStructuralTag;
  output.source = tag.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return output;
}

}  // namespace

Result<ToolFormat> tool_format(std::string_view parser, std::string_view template_source) {
  if (parser == "hermes") return ToolFormat::kHermes;
  if (parser == "llama3_json") return ToolFormat::kLlama3;
  if (!parser.empty() && parser != "auto") {
    return invalid_argument(
               fmt::format("unknown tool call parser '{}', known are auto, hermes and llama3_json", parser))
        .with_param("tool-call-parser");
  }
  const bool llama = template_source.find(kCallBegin) == std::string_view::npos &&
                     template_source.find(R"("parameters")") != std::string_view::npos &&
                     template_source.find("<|start_header_id|>") != std::string_view::npos;
  return llama ? ToolFormat::kLlama3 : ToolFormat::kHermes;
}

std::string_view name(ToolFormat format) {
  return format == ToolFormat::kHermes ? "hermes" : "llama3_json";
}

std::unique_ptr<ToolParser> make_tool_parser(ToolFormat format, std::function<std::string()> make_id) {
  if (format == ToolFormat::kHermes) return std::make_unique<HermesParser>(std::move(make_id));
  return std::make_unique<Llama3Parser>(std::move(make_id));
}

StructuredOutput tool_call_grammar(ToolFormat format, const std::vector<Tool>& tools, bool several) {
  ordered_json calls;
  calls["type"] = "tags_with_separator";
  for (const Tool& tool : tools) calls["tags"].push_back(call_tag(format, tool));
  calls["separator"] = format == ToolFormat::kHermes ? "\n" : "; ";
  calls["at_least_one"] = true;
  calls["stop_after_first"] = !several;
  return structural(std::move(calls));
}

StructuredOutput optional_tool_call_grammar(const std::vector<Tool>& tools, bool several) {
  ordered_json calls;
  calls["type"] = "triggered_tags";
  calls["triggers"] = {std::string(kCallBegin)};
  for (const Tool& tool : tools) calls["tags"].push_back(call_tag(ToolFormat::kHermes, tool));
  calls["at_least_one"] = false;
  calls["stop_after_first"] = !several;
  return structural(std::move(calls));
}

}  // namespace zipage
