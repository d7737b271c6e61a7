#include "text/tool_call_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/json_fields.h"
#include "text/json_text.h"

namespace zipage {
namespace {

using nlohmann::json;

}  // namespace

std::string ToolCallReader::take_arguments() {
  return has_name_ ? std::exchange(arguments_, {}) : std::string();
}

ToolCallReader::State ToolCallReader::push(char byte) {
  raw_ += byte;
  switch (at_) {
    case At::kStart:
      if (byte == '{') {
        at_ = At::kKeyOrEnd;
      } else if (!is_json_space(byte)) {
        fail();
      }
      break;
    case At::kKeyOrEnd:
    case At::kKey:
      if (byte == '"') {
        key_.clear();
        at_ = At::kInKey;
      } else if (!is_json_space(byte)) {
        fail();  // an object without a name is no call
      }
      break;
    case At::kInKey:
      if (byte == '"') {
        at_ = At::kColon;
      } else if (byte == '\\') {
        fail();
      } else {
        key_ += byte;
      }
      break;
    case At::kColon:
      if (byte == ':') {
        at_ = At::kValue;
      } else if (!is_json_space(byte)) {
        fail();
      }
      break;
    case At::kValue:
      if (!is_json_space(byte)) begin_value(byte);
      break;
    case At::kInValue:
      in_value(byte);
      break;
    case At::kCommaOrEnd:
      if (byte == ',') {
        at_ = At::kKey;
      } else if (byte == '}') {
        if (has_name_) {
          state_ = State::kDone;
          // A call without arguments has none of them.
          if (!has_arguments_) arguments_ = "{}";
        } else {
          fail();
        }
      } else if (!is_json_space(byte)) {
        fail();
      }
      break;
  }
  return state_;
}

void ToolCallReader::begin_value(char byte) {
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  kind_ = key_ == "name" && !has_name_      ? Value::kName
          : is_arguments && !has_arguments_ ? Value::kArguments
                                            : Value::kOther;
  if (kind_ == Value::kName && byte != '"') return fail();
  if (byte == ',' || byte == '}' || byte == ']' || byte == ':') return fail();
  at_ = At::kInValue;
  value_.clear();
  depth_ = 0;
  in_string_ = escaped_ = false;
  in_value(byte);
}

void ToolCallReader::in_value(char byte) {
  const bool scalar = depth_ == 0 && !in_string_ && !value_.empty();
  if (scalar && (byte == ',' || byte == '}' || is_json_space(byte))) {
    end_value();
    // The byte is behind the value.
    raw_.pop_back();
    if (state_ == State::kReading) push(byte);
    return;
  }
  value_ += byte;
  // An object is shown as it comes; a string may hold one in quotes, which is known at its end.
  if (kind_ == Value::kArguments && value_.front() != '"') {
    arguments_ += byte;
    has_arguments_ = true;
  }
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (byte == '\\') {
      escaped_ = true;
    } else if (byte == '"') {
      in_string_ = false;
      if (depth_ == 0) end_value();
    }
    return;
  }
  if (byte == '"') {
    in_string_ = true;
  } else if (byte == '{' || byte == '[') {
    ++depth_;
  } else if (byte == '}' || byte == ']') {
    if (--depth_ == 0) end_value();
  }
}

void ToolCallReader::end_value() {
  at_ = At::kCommaOrEnd;
  if (kind_ == Value::kOther) return;
  if (kind_ == Value::kArguments && value_.front() != '"') return;
  const json text = json::parse(value_, nullptr, false);
  if (!text.is_string()) return fail();
  if (kind_ == Value::kName) {
    name_ = text.get<std::string>();
    if (name_.empty()) return fail();
    has_name_ = true;
    return;
  }
  has_arguments_ = true;
  const json inner = json::parse(text.get_ref<const std::string&>(), nullptr, false);
  arguments_ += inner.is_object() ? text.get<std::string>() : value_;
}

}  // namespace zipage
