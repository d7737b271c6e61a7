// Reads one tool call, a JSON object with a name and arguments, byte by byte.
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zipage {

class ToolCallReader {
 public:
  enum class State : uint8_t {
    kReading,
    kDone,   // the object is complete
    kWrong,  // this is no call
  };

  // Takes one byte. REQUIRES: kReading. White space before the object is skipped.
  State push(char byte);
  State state() const { return state_; }

  // Complete, once has_name().
  bool has_name() const { return has_name_; }
  const std::string& name() const { return name_; }
  // Arguments that have come since the last call, as JSON text. Nothing before has_name().
  std::string take_arguments();
  // Everything that was pushed.
  const std::string& raw() const { return raw_; }

 private:
  enum class At : uint8_t { kStart, kKeyOrEnd, kKey, kInKey, kColon, kValue, kInValue, kCommaOrEnd };
  void fail() { state_ = State::kWrong; }
  void begin_value(char byte);
  void in_value(char byte);
  void end_value();

  State state_ = State::kReading;
  At at_ = At::kStart;
  std::string raw_, key_, value_, name_, arguments_;
  bool has_name_ = false, has_arguments_ = false;
  bool in_string_ = false, escaped_ = false;
  int depth_ = 0;
  enum class Value : uint8_t { kName, kArguments, kOther } kind_ = Value::kOther;
};

}  // namespace zipage
