#include <algorithm>
#include <utility>

#include "text/detokenizer.h"

namespace zipage {

StopChecker::StopChecker(std::vector<std::string> stops, bool include_stop_in_output)
    : stops_(std::move(stops)), include_(include_stop_in_output) {
  std::erase(stops_, std::string());
}

std::string StopChecker::push(std::string_view text) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(text);
  held_.append(text);
  // The first to be complete, so that the pieces in which a text comes make no difference; of several, the longest.
  size_t best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    const size_t end = found + stop.size();
    if (end < best_end || (end == best_end && stop.size() > stop_.size())) {
      best_end = end;
      stop_ = stop;
    }
  }
  if (best_end != std::string::npos) {
    matched_ = true;
    held_.resize(include_ ? best_end : best_end - stop_.size());
    return std::exchange(held_, {});
  }
  // Hold back the longest end that begins a stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, size))) {
        keep = size;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopChecker::finish() {
  return matched_ ? std::string() : std::exchange(held_, {});
}

}  // namespace zipage
