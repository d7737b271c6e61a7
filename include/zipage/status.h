// Errors that a user, a file or a client can cause. A broken invariant aborts instead (base/check.h); a device or I/O
// failure throws and is caught once per step.
//
// Thread-safety: values, freely copied.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace zipage {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the request or flag is wrong; retrying cannot help
  kNotFound,           // a file, model, tensor or request is missing
  kResourceExhausted,  // a queue or a memory is full; retrying later may help
  kUnimplemented,      // a known thing that this build refuses by name
  kDataLoss,           // a file is truncated or contradicts itself
  kCancelled,          // aborted by its owner
  kUnavailable,        // shutting down or not loaded yet
  kInternal,           // a device or I/O failure
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // One sentence that names what was wrong and where. Empty when ok.
  const std::string& message() const { return message_; }
  // The field, flag or file that is at fault; empty when it is not one thing.
  const std::string& param() const { return param_; }
  Status&& with_param(std::string param) && {
    param_ = std::move(param);
    return std::move(*this);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string param_;
};

inline Status invalid_argument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  // REQUIRES: ok()
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace zipage

// Returns from the enclosing function when `expr` (a Status) is an error.
#define ZIPAGE_RETURN_IF_ERROR(expr)                        \
  do {                                                      \
    if (::zipage::Status status_ = (expr); !status_.ok()) { \
      return status_;                                       \
    }                                                       \
  } while (false)

#define ZIPAGE_CONCAT_INNER_(a, b) a##b
#define ZIPAGE_CONCAT_(a, b) ZIPAGE_CONCAT_INNER_(a, b)
// ZIPAGE_ASSIGN_OR_RETURN(auto x, f()): assigns the value or returns the status of f().
#define ZIPAGE_ASSIGN_OR_RETURN(lhs, expr)             \
  auto ZIPAGE_CONCAT_(result_, __LINE__) = (expr);     \
  if (!ZIPAGE_CONCAT_(result_, __LINE__).ok()) {       \
    return ZIPAGE_CONCAT_(result_, __LINE__).status(); \
  }                                                    \
  lhs = std::move(ZIPAGE_CONCAT_(result_, __LINE__)).value()
